r"""Runs that die, each for a reason that is known, recorded with stacks; and whether advice helps.

    python gpu/died.py -o died                      # records all kinds into the folder `died`
    for f in died/*.pickle; do girih why $f --json > ${f%.pickle}.why.json; done
    python gpu/died.py --advice died                # runs each again as its advice says

Each kind is a process of its own that may have only a few GiB of the card
(`set_per_process_memory_fraction`), so that it dies within seconds. Beside the snapshot KIND.pickle
stands KIND.log, with the error as PyTorch prints it. `other_process` has no limit: another process
holds the rest of the card.

With `--advice` the advice is tried: settings that fit by the replays, a smaller batch, a leak that
is let go of, a card of one's own. It is right if one of them gets to its end. Exit status 1 if a
kind did not die, or its advice did not help.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

GIB = 1 << 30
# Entries of the recording at most: a run of seconds has fewer.
ENTRIES = 400_000
# Bytes that other_process leaves of the card, beside what a process has for its context.
LEFT = 6 * GIB


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What attention and the feed-forward layer add."""
        batch, length, width = x.shape
        heads = (
            self.qkv(self.norm1(x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A small language model."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


VOCABULARY = 8192


def build(width: int, layers: int) -> Model:
    """A model on the card."""
    return Model(width, layers, VOCABULARY).to("cuda", torch.bfloat16)


def batch_of(samples: int, length: int) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(VOCABULARY, (samples, length), device="cuda")


def loss_of(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of predicting each next token."""
    logits = model(tokens)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model: Model, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    """A step."""
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


# ---- the kinds. `share` is that of the batch; with `fixed` the program has been mended ----


def too_much(share: float, fixed: bool) -> None:
    """A batch that is too large."""
    model = build(1024, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        train(model, optimizer, batch_of(max(1, int(64 * share)), 1024))


def fragmented(share: float, fixed: bool) -> None:
    """Lengths that vary."""
    model = build(1024, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(11)
    # What the longest needs, and a twentieth: another twentieth in pieces, and it dies.
    train(model, optimizer, batch_of(max(1, int(16 * share)), 64 * 31 + 6))
    total = torch.cuda.get_device_properties(0).total_memory
    if share == 1.0:
        torch.cuda.set_per_process_memory_fraction(1.05 * torch.cuda.max_memory_allocated() / total)
    torch.cuda.empty_cache()
    for step in range(60):
        length = 64 * int(torch.randint(2, 32, (1,), generator=generator)) if step else 512
        train(model, optimizer, batch_of(max(1, int(16 * share)), length + step % 7))


def leak(share: float, fixed: bool) -> None:
    """`total = total + loss` keeps the graph of each step."""
    model = build(512, 6)
    total: torch.Tensor | float = 0.0
    for _ in range(60):
        tokens = batch_of(max(1, int(8 * share)), 512)
        loss = loss_of(model, tokens)
        total = total + (loss.item() if fixed else loss)


def kept(share: float, fixed: bool) -> None:
    """A list keeps the outputs of each step."""
    model = build(1024, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    outputs = []
    for _ in range(80):
        tokens = batch_of(max(1, int(8 * share)), 512)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        outputs.append(logits.detach().cpu() if fixed else logits.detach().float())


def other_process(share: float, fixed: bool) -> None:
    """It needs more than another process leaves."""
    model = build(1024, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        train(model, optimizer, batch_of(max(1, int(24 * share)), 1024))


def other_pool(share: float, fixed: bool) -> None:
    """A graph's private pool keeps what its capture needed."""
    model = build(1024, 8)
    tokens = batch_of(16, 1024)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss_of(model, tokens[:1])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(model, tokens)
    graph.replay()
    # What the pass has saved is free now, in the pool of the graph.
    del loss
    if fixed:
        del graph
        torch.cuda.empty_cache()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        train(model, optimizer, batch_of(max(1, int(12 * share)), 1024))


def spike(share: float, fixed: bool) -> None:
    """The states of the optimizer, in its first step."""
    model = build(2048, 20)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not fixed)
    for _ in range(3):
        train(model, optimizer, batch_of(1, 256))


def other_stream(share: float, fixed: bool) -> None:
    """Another stream keeps what it needed, and a little of each piece of it."""
    model = build(1024, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.current_stream() if fixed else torch.cuda.Stream()
    small = []
    with torch.cuda.stream(side):
        large = []
        for _ in range(12):
            whole = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
            del whole
            large.append(torch.empty(500 << 20, dtype=torch.uint8, device="cuda"))
            small.append(torch.empty(12 << 20, dtype=torch.uint8, device="cuda"))
        large.clear()
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(4):
        train(model, optimizer, batch_of(max(1, int(12 * share)), 1024))


# Of each kind the program, and the GiB that it may have.
KINDS: dict[str, tuple[Callable[[float, bool], None], float | None]] = {
    "too_much": (too_much, 12.0),
    "fragmented": (fragmented, 12.5),
    "leak": (leak, 8.0),
    "kept": (kept, 8.0),
    "other_process": (other_process, None),
    "other_pool": (other_pool, 8.0),
    "spike": (spike, 8.5),
    "other_stream": (other_stream, 9.0),
}
VERDICTS = {"kept": "leak"}


def run_one(kind: str, folder: Path, share: float, fixed: bool, stacks: str | None) -> int:
    """Runs a kind in this process. Gives 0 if it gets to its end, 3 if memory ran out."""
    program, limit = KINDS[kind]
    if limit is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit * GIB / total)
    if stacks:
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks=stacks)
    try:
        program(share, fixed)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        if stacks:
            torch.cuda.memory._dump_snapshot(str(folder / f"{kind}.pickle"))
            (folder / f"{kind}.log").write_text(traceback.format_exc())
        print(traceback.format_exc(limit=1).splitlines()[-1][:300], file=sys.stderr)
        return 3
    return 0


@contextlib.contextmanager
def company(kind: str, is_there: bool) -> Any:
    """Another process on the card, for the kind that needs it."""
    if kind != "other_process" or not is_there:
        yield
        return
    command = [sys.executable, __file__, "--hold"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as held:
        assert held.stdin is not None
        assert held.stdout is not None
        if not held.stdout.readline():
            raise SystemExit("the rest of the card cannot be held; see above")
        try:
            yield
        finally:
            held.stdin.close()


def hold() -> int:
    """Takes all of the card but a little, and keeps it until its input is closed."""
    free, _ = torch.cuda.mem_get_info()
    whole = torch.empty(max(0, free - LEFT), dtype=torch.uint8, device="cuda")
    print(f"holds {whole.numel() / GIB:.1f} GiB", flush=True)
    sys.stdin.read()
    return 0


def launch(
    kind: str, folder: Path, before: list[str], environ: dict[str, str], *words: str
) -> tuple[int, float, str]:
    """Runs a kind in a process of its own: its status, its seconds, its last line."""
    command = [sys.executable, *before, __file__, "--kind", kind, "-o", str(folder), *words]
    begun = time.monotonic()
    ran = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=300, check=False
    )
    said = (ran.stderr.strip().splitlines() or [""])[-1]
    return ran.returncode, time.monotonic() - begun, said


def record(kinds: list[str], folder: Path, stacks: str) -> int:
    """Records each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for kind in kinds:
        with company(kind, True):
            status, seconds, said = launch(kind, folder, [], {}, "--record", "--stacks", stacks)
        wrong += status != 3
        outcome = "died" if status == 3 else f"DID NOT DIE, exit status {status}"
        print(f"{kind:<14} {outcome} in {seconds:.1f} s  {said[:110]}", flush=True)
    return int(wrong > 0)


def tries(
    kind: str, told: dict[str, Any]
) -> list[tuple[str, list[str], dict[str, str], list[str]]]:
    """What the advice amounts to: a name, words before the program, variables, words after it."""
    found = []
    for fit in told["would_fit"]:
        name = fit["setting"]
        if not fit["fits"]:
            continue
        if name == "expandable":
            found.append((name, [], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, []))
        elif ":" in name:
            found.append((name, [], {"PYTORCH_CUDA_ALLOC_CONF": name}, []))
        elif name in ("stitch", "planned"):
            mode = ["--mode", "stitch"] if name == "stitch" else []
            found.append((name, ["-m", "girih", "run", "--quiet", *mode], {}, []))
    verdict = told["verdict"]
    if verdict in ("leak", "spike", "other_pool", "other_stream"):
        mended = ("the program mended", [], {}, ["--fixed"])
        return [mended] if verdict == "leak" else [*found, mended]
    if verdict == "other_process":
        return [("a card of its own", [], {}, ["--alone"])]
    if verdict == "too_much" and told.get("batch_share"):
        share = told["batch_share"]
        return [(f"a batch of {100 * share:g} %", [], {}, ["--share", str(share)])]
    return found


def try_advice(kinds: list[str], folder: Path, girih: str) -> int:
    """Runs each kind as its advice says."""
    wrong = 0
    for kind in kinds:
        answer = folder / f"{kind}.why.json"
        if not answer.exists() and not (folder / f"{kind}.pickle").exists():
            print(f"{kind:<14} NOT RECORDED", flush=True)
            wrong += 1
            continue
        if not answer.exists():
            command = [girih, "why", str(folder / f"{kind}.pickle"), "--json"]
            answer.write_text(
                subprocess.run(command, capture_output=True, check=True, text=True).stdout
            )
        told = json.loads(answer.read_text())
        right = told["verdict"] == VERDICTS.get(kind, kind)
        print(f"{kind:<14} verdict {told['verdict']} {'right' if right else 'WRONG'}", flush=True)
        helped = False
        for name, before, environ, words in tries(kind, told):
            with company(kind, "--alone" not in words):
                rest = [word for word in words if word != "--alone"]
                status, seconds, said = launch(kind, folder, before, environ, *rest)
            helped |= status == 0
            outcome = "fits" if status == 0 else f"exit status {status} {said[:90]}"
            print(f"    {name:<36} {outcome} in {seconds:.1f} s", flush=True)
        wrong += not (right and helped)
    print(f"{len(kinds) - wrong} of {len(kinds)} verdicts are right and their advice helps")
    return int(wrong > 0)


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, default=Path(os.environ.get("OUT", "died")))
    add("--advice", type=Path, metavar="FOLDER", help="tries what `girih why` advised there")
    add("--only", default=",".join(KINDS), help=f"of {','.join(KINDS)}")
    add("--girih", default="girih", help="the command, where an answer is not there yet")
    # Frames of C++ are looked up when the snapshot is written, which takes a minute.
    add("--stacks", choices=("python", "all"), default="python", help="which frames are recorded")
    for hidden in ("--kind", "--share"):
        add(hidden, type=float if hidden == "--share" else str, help=argparse.SUPPRESS)
    for hidden in ("--hold", "--fixed", "--record"):
        add(hidden, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        return hold()
    if given.kind:
        stacks = given.stacks if given.record else None
        return run_one(given.kind, given.output, given.share or 1.0, given.fixed, stacks)
    kinds = given.only.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no kind is called {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if given.advice is not None:
        return try_advice(kinds, given.advice, given.girih)
    return record(kinds, given.output, given.stacks)


if __name__ == "__main__":
    sys.exit(main())
