"""Long contexts: what is computed in parts is what would be computed whole, to the bit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from checks.registry import CHILD_SECONDS_MAX, Skip, alone, check, girih_mode


def be_exact() -> None:
    """Kernels that give the same bits each time. Before cuBLAS is asked for anything."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)


def both(function: Callable[[], torch.Tensor], model: nn.Module) -> list[torch.Tensor]:
    """A loss, and all gradients."""
    model.zero_grad()
    loss = function()
    loss.backward()
    return [loss.detach(), *(it.grad.clone() for it in model.parameters() if it.grad is not None)]


def same(expected: list[torch.Tensor], found: list[torch.Tensor], what: str) -> None:
    """Fails where a bit is another."""
    differing = [
        at for at, pair in enumerate(zip(expected, found, strict=True)) if not equal(*pair)
    ]
    assert not differing, f"{what}: {len(differing)} of {len(expected)} tensors differ"


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit."""
    return torch.equal(one.nan_to_num(7), other.nan_to_num(7))


@check
def loss_in_tiles() -> None:
    """Cross entropy in tiles has PyTorch's loss and gradient."""
    import girih

    for rows, classes in ((5000, 32000), (3001, 50257), (70000, 1000), (7, 128256)):
        logits = (torch.randn(rows, classes, device="cuda") * 4).bfloat16()
        target = torch.randint(0, classes, (rows,), device="cuda")
        target[::7] = -100
        for reduction in ("mean", "sum"):
            results = []
            for ours in (False, True):
                own = logits.clone().requires_grad_()
                if ours:
                    loss = girih.cross_entropy(own, target, reduction=reduction)
                else:
                    loss = functional.cross_entropy(own.float(), target, reduction=reduction)
                (loss * 3).backward()
                results.append([loss.detach(), own.grad])
            same(*results, f"{rows} rows of {classes}, {reduction}")


class Block(nn.Module):
    """A layer as a decoder has it, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """One pass."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, -1, 64)).unbind(2)
        heads = (it.transpose(1, 2) for it in (q, k, v))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + functional.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Stack(nn.Module):
    """A few of them."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        """One pass."""
        for layer in self.layers:
            x = layer(x)
        return x


def stack(tokens: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Layers, and a way to their loss that draws the same numbers each time."""
    torch.manual_seed(0)
    model = Stack(4, 512).cuda().bfloat16()
    data = torch.randn(2, tokens, 512, device="cuda", dtype=torch.bfloat16)

    def run() -> torch.Tensor:
        torch.manual_seed(1)
        return model(data).float().square().mean()

    return model, run


@alone
def split_by_tokens() -> None:
    """Layers that keep some tokens have the gradients of layers that keep all."""
    import girih

    be_exact()
    for tokens in (4096, 3001):
        model, run = stack(tokens)
        expected = both(run, model)
        for alpha in (0, "products", 0.125, 0.25, 0.5, [0, 0.5, "products", 1]):
            girih.long_context(model, alpha=alpha)
            for turn in range(3):
                same(expected, both(run, model), f"{tokens} tokens, alpha {alpha}, pass {turn}")
            if alpha == 0:
                layers = girih.long_context_report(model)["layers"]
                parts = [it["bytes_kept"] / it["bytes_saved"] for it in layers]
                assert max(parts) < 0.35, f"of what is saved {parts} are kept"


def digests() -> list[str]:
    """Of all gradients: of the layers as they are, then of those that keep some tokens."""
    import girih

    be_exact()
    model, run = stack(4096)
    found = []
    for alpha in (None, 0, "products", 0.5):
        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        for _ in range(6):
            whole = hashlib.sha256()
            for it in both(run, model):
                whole.update(it.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
            found.append(whole.hexdigest())
    return found


@alone
def split_and_swapped() -> None:
    """The same bits under half of the memory, where what needs no gradient comes and goes too."""
    if girih_mode() not in ("auto", "stitch"):
        raise Skip("swapping is of the modes auto and stitch")
    torch.cuda.reset_peak_memory_stats()
    expected = digests()
    budget = torch.cuda.max_memory_allocated() // 2
    command = ["-m", "girih", "run", "--no-plan-dir", f"--gpu-budget={budget}B", __file__]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(it for it in sys.path if it)}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stderr[-600:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["bytes_out"] > 0, "nothing was swapped"
    assert set(expected) == set(said["digests"]), (expected, said["digests"])
    assert len(set(expected)) == 1, "the run without a budget differs from pass to pass"


if __name__ == "__main__":
    import girih

    made = digests()
    print(json.dumps({"digests": made, "bytes_out": girih.stats(0)["swap"]["bytes_out"]}))
