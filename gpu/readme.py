"""The table of README: every workload under every allocator, all of one commit, one file.

    python gpu/readme.py --cards 2 --commit $(git rev-parse --short HEAD) -o readme.json

The workloads are those of `workloads/`, the allocators those of `modes.py`: torch's two, `stitch`,
a first launch of `auto` and a second, and native once more, which says how much of a ratio of step
times is the card's. A launch has its cards to itself, while the next one loads its libraries. What
needs more cards than there are is left out, and said. What there is of a workload lies beside the
output after each of its launches, also if it is cut off. `scripts/bench --readme` makes README's
table of the output, once it lies in `bench/results/gpu/`.
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modes
from kinds import take_card

WORKLOADS = Path(__file__).resolve().parent / "workloads"
HF, MEGATRON = "hf.py", "megatron_gpt.py"
VIRTUAL = "--pipeline 2 --interleaved --batch 32 --recompute"
# Cards, what it is called, the command line.
ROWS = [
    (1, "Hugging Face, GPT-2 345M, recompute", f"{HF} gpt2 --recompute --batch 64"),
    (1, "Hugging Face, Llama-13B with LoRA, recompute", f"{HF} lora-13b --recompute --steps 9"),
    (
        1,
        "Hugging Face, Llama of 8 layers, nothing recomputed",
        f"{HF} llama-2b --batch 16 --steps 10",
    ),
    (1, "Hugging Face, Qwen MoE of 10 layers, recompute", f"{HF} qwen-moe --recompute"),
    (
        1,
        "Hugging Face, Llama of 8 layers, lengths that vary, validation",
        f"{HF} llama-2b --recompute --vary --evaluate-every 3 --batch 16 --steps 10",
    ),
    (2, "DDP, GPT-2 345M, accumulation of 4", "ddp.py --batch 12 --micro 4"),
    (2, "FSDP2, Llama of 16 layers, recompute", "fsdp.py --recompute --batch 12"),
    (2, "Megatron-core, GPT-2 345M, PP 2 with virtual pipeline", f"{MEGATRON} gpt2 {VIRTUAL}"),
    (
        2,
        "Megatron-core, Qwen1.5-MoE of 8 layers, PP 2 with virtual pipeline",
        f"{MEGATRON} qwen-moe --layers 8 --pipeline 2 --interleaved --batch 2",
    ),
    (
        4,
        "Megatron-core, GPT-2 345M, TP 2 PP 2 with virtual pipeline",
        f"{MEGATRON} gpt2 --tensor 2 {VIRTUAL}",
    ),
    (
        4,
        "Megatron-core, Qwen1.5-MoE, TP 2 PP 2 EP 2",
        f"{MEGATRON} qwen-moe --tensor 2 --pipeline 2 --expert 2 --batch 4",
    ),
]
# Workloads that take turns at a card.
WAITING = 2
DEFAULT = "native,expandable,stitch,auto,again,native"


def machine() -> str:
    """The GPU and its driver, as the driver says."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def measure(
    row: tuple[int, str, str], only: list[str], timeout: float, so_far: Path | None
) -> dict[str, Any]:
    """All launches of one workload. What there is of them is in a file after each."""
    cards, what, line = row
    name, *rest = line.split()
    launch = argparse.Namespace(
        workload=str(WORKLOADS / name), rest=rest, gpus=cards, torchrun=False, timeout=timeout
    )
    with tempfile.TemporaryDirectory() as cache:
        runs = []
        for mode in only:
            runs.append(modes.launch(mode, launch, cache))
            done = {"what": what, **modes.summary(runs, launch)}
            if so_far:
                so_far.write_text(json.dumps(done, indent=1) + "\n")
    return done


def side_by_side(
    rows: list[tuple[int, str, str]],
    groups: list[str],
    only: list[str],
    timeout: float,
    output: Path | None,
) -> Iterator[dict[str, Any]]:
    """All launches of these workloads, each on a group of cards of its own, in turns."""
    context = multiprocessing.get_context("spawn")
    free = context.Queue()
    for cards in groups * WAITING:
        free.put(cards)
    with (
        tempfile.TemporaryDirectory() as turns,
        concurrent.futures.ProcessPoolExecutor(
            len(groups) * WAITING,
            mp_context=context,
            initializer=take_card,
            initargs=(free, turns),
        ) as workers,
    ):
        of_row = [output and output.with_suffix(f".{ROWS.index(row)}.json") for row in rows]
        each = zip(rows, of_row, strict=True)
        tasks = [workers.submit(measure, row, only, timeout, path) for row, path in each]
        for task in concurrent.futures.as_completed(tasks):
            yield task.result()


def show(done: dict[str, Any]) -> None:
    """Prints the launches of one workload."""
    print(f"\n{done['what']}  ({' '.join(done['workload'])})")
    native = next((run for run in done["runs"] if run["mode"] == "native" and "ranks" in run), None)
    for run in done["runs"]:
        print(modes.row(run, native), flush=True)


def main() -> int:
    """Runs what the command line asks for. 1 if a launch failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("match", nargs="*", help="only workloads whose name has one of these")
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--only", default=DEFAULT)
    parser.add_argument("--commit", default="", help="of the build that is measured")
    parser.add_argument("--timeout", type=float, default=280, help="seconds for one launch")
    parser.add_argument("--onto", type=Path, help="rows of the same commit that are there already")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    names = modes.card_names(parser, arguments.cards)
    only = arguments.only.split(",")
    rows = [r for r in ROWS if not arguments.match or any(m in r[1] for m in arguments.match)]
    head = {
        "commit": arguments.commit,
        "date": str(datetime.date.today()),
        "machine": machine(),
        "rows": [],
    }
    if arguments.onto:
        before = json.loads(arguments.onto.read_text())
        if any(before[name] != head[name] for name in ("commit", "machine")):
            parser.error(f"{arguments.onto} is of another commit or machine")
        head["rows"] = before["rows"]

    def keep(done: dict[str, Any]) -> None:
        show(done)
        head["rows"].append(done)
        if arguments.output:
            arguments.output.write_text(json.dumps(head, indent=1) + "\n")

    for cards, what, _ in rows:
        if cards > arguments.cards:
            print(f"{what}: left out, it needs {cards} cards")
    for width in sorted({cards for cards, _, _ in rows if cards <= arguments.cards}):
        firsts = range(0, arguments.cards - width + 1, width)
        groups = [",".join(names[first : first + width]) for first in firsts]
        of_width = [row for row in rows if row[0] == width]
        for done in side_by_side(of_width, groups, only, arguments.timeout, arguments.output):
            keep(done)
    return int(any("error" in run for done in head["rows"] for run in done["runs"]))


if __name__ == "__main__":
    sys.exit(main())
