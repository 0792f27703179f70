"""A small GPT that learns for thousands of steps: the workload of `gpu/losses.py`.

python gpu/workloads/gpt.py --way recompute --steps 5000 --skip-every 50 --validate-every 20
python -m girih run --gpu-budget 1GiB gpu/workloads/gpt.py --way plain

A way is what the program does with its activations: `plain` keeps them, `recompute` computes every
layer again, `capuchin` swaps by the identity (operator number, i-th tensor) within `--budget`
bytes, `capuchin-told` is told besides where each step begins. It learns a text of its own, whose
next letter depends on the two before. Every loss is kept to the bit. `--device cpu --tiny` tries
it without a GPU.
"""

import argparse
import contextlib
import json
import sys
import time
from typing import Any

import torch
from capuchin import Capuchin
from measure import deterministic, girih_stats
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WAYS = ("plain", "recompute", "capuchin", "capuchin-told")
LETTERS = 256


class Layer(nn.Module):
    """Attention and two products."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer of a stream of states."""
        batch, length, width = x.shape
        each = self.attend(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = each.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.join(found.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.narrow(functional.gelu(self.widen(self.between(x)))))


class Gpt(nn.Module):
    """The model."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, sizes.width)
        self.places = nn.Embedding(sizes.length, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.last = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, LETTERS, bias=False)
        self.is_recomputed = sizes.way == "recompute"

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """The loss of each next letter."""
        x = self.letters(text[:, :-1]) + self.places.weight
        for layer in self.layers:
            if self.is_recomputed and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        logits = self.head(self.last(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def make_text(count: int) -> torch.Tensor:
    """Letters of which three in four follow from the two before."""
    chance = torch.Generator().manual_seed(11)
    rule = torch.randint(LETTERS, (LETTERS, 7), generator=chance).tolist()
    free = torch.randint(LETTERS, (count,), generator=chance).tolist()
    is_free = (torch.rand(count, generator=chance) < 0.25).tolist()
    text = [1, 2]
    for place in range(2, count):
        text.append(free[place] if is_free[place] else rule[text[-1]][text[-2] % 7])
    return torch.tensor(text)


def digest(model: nn.Module) -> str:
    """Of every parameter, to the bit."""
    whole = 0
    for parameter in model.parameters():
        bits = parameter.detach().contiguous().view(torch.int32).to(torch.int64).flatten()
        weights = torch.arange(1, bits.numel() + 1, device=bits.device) % 65521
        whole = (whole * 1_000_003 + int((bits * weights).sum())) % (1 << 64)
    return f"{whole:016x}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--way", choices=WAYS, default="plain")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--budget", type=int, default=0, help="of capuchin, bytes on the GPU")
    parser.add_argument("--excess", type=int, default=0, help="bytes that it sends away, instead")
    for name, value in {
        "layers": 6,
        "width": 512,
        "heads": 8,
        "length": 512,
        "batch": 16,
        "steps": 5000,
        "skip-every": 50,
        "validate-every": 20,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    if arguments.tiny:
        # Activations of 1 MiB and more, for smaller ones are nobody's to swap.
        arguments.layers, arguments.width, arguments.length, arguments.batch = 2, 64, 64, 64
        arguments.heads = 2
    return arguments


class Training:
    """Model, text and what was seen."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        torch.manual_seed(3)
        self.model = Gpt(arguments).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, fused=self.device.type == "cuda"
        )
        whole = make_text(1 << (15 if arguments.tiny else 19)).to(self.device)
        held_out = len(whole) // 16
        self.text, self.unseen = whole[:-held_out], whole[-held_out:]
        self.losses = torch.zeros(arguments.steps, device=self.device)
        self.validations: list[torch.Tensor] = []
        # The batches of one run are those of every other.
        self.places = torch.Generator().manual_seed(7)
        self.capuchin: Capuchin | None = None

    def batch(self, text: torch.Tensor, places: torch.Generator) -> torch.Tensor:
        """Pieces of a text."""
        length = self.arguments.length + 1
        starts = torch.randint(len(text) - length, (self.arguments.batch, 1), generator=places)
        return text[(starts + torch.arange(length)).to(self.device)]

    def watch(self) -> Capuchin:
        """Has Capuchin watch the next step."""
        arguments = self.arguments
        above = self.allocated(peak=True) - arguments.budget
        self.capuchin = Capuchin(
            {p.data_ptr() for p in self.model.parameters()}, arguments.excess or max(0, above)
        )
        return self.capuchin

    def step(self, step: int) -> None:
        """One step, with its validation if it has one."""
        arguments = self.arguments
        text = self.batch(self.text, self.places)
        with self.capuchin.hooks() if self.capuchin else contextlib.nullcontext():
            loss = self.forward(text)
        loss.backward()
        if not (arguments.skip_every and (step + 1) % arguments.skip_every == 0):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses[step] = loss.detach()
        if arguments.validate_every and (step + 1) % arguments.validate_every == 0:
            self.model.eval()
            with torch.no_grad():
                unseen = self.batch(self.unseen, torch.Generator().manual_seed(5))
                self.validations.append(self.forward(unseen).detach())
            self.model.train()

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """The loss, computed in 16 bits where that is usual."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss: torch.Tensor = self.model(text)
        return loss

    def allocated(self, peak: bool = False) -> int:
        """Bytes on the GPU."""
        if self.device.type != "cuda":
            return 0
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()


def run(training: Training) -> tuple[int, str | None]:
    """All steps, or as many as there come. Their number, and what ended them."""
    arguments = training.arguments
    is_capuchin = arguments.way.startswith("capuchin")
    with contextlib.ExitStack() as stack:
        for step in range(arguments.steps):
            if is_capuchin and step == 1:
                # The first step makes the optimizer's states: the second is like all others.
                stack.enter_context(training.watch())
            elif training.capuchin and step == 2:
                training.capuchin.end_of_watching()
            elif training.capuchin and arguments.way == "capuchin-told":
                training.capuchin.restart()
            try:
                training.step(step)
            except (LookupError, torch.OutOfMemoryError) as error:
                return step, f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if sys.stderr.isatty() and step % 100 == 99:
                print(f"\r{step + 1} of {arguments.steps} steps", end="", file=sys.stderr)
    return arguments.steps, None


def main() -> None:
    """Trains, and prints what was seen."""
    arguments = parse()
    deterministic(exact=True)
    training = Training(arguments)
    start = time.perf_counter()
    done, ended = run(training)
    if arguments.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    losses = training.losses[:done].tolist()
    stats = girih_stats() if arguments.device == "cuda" else None
    result: dict[str, Any] = {
        "way": arguments.way,
        "steps": done,
        "ended": ended,
        "step_ms": 1e3 * seconds / max(1, done),
        "allocated": training.allocated(),
        "allocated_peak": training.allocated(peak=True),
        "exact_losses": [loss.hex() for loss in losses],
        "exact_validations": [float(loss).hex() for loss in training.validations],
        "parameters": digest(training.model),
        "swap": (stats or {}).get("swap"),
    }
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
