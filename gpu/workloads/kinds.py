"""Training programs of other kinds than language models: sizes and shapes vary from step to step.

python gpu/workloads/kinds.py detector --seed 3
python gpu/workloads/kinds.py speech --size 2 --steps 100
python gpu/workloads/kinds.py gan --snapshot gan
python gpu/workloads/kinds.py experts --device cpu --tiny --size 0.01 --steps 3

Every program draws its sizes from the seed; at `--size 1` it is meant to hold 10 to 30 GiB. Kernels
are deterministic where there are such, as in the other workloads, so that what depends on data, as
the load of an expert, is nearly the same in equal runs; only `detector` runs as it comes.
`--snapshot` has PyTorch record the run: PATH.pickle.gz is its snapshot, PATH.marks.json.gz says
when steps ended and what the peaks were.
"""

import argparse
import gzip
import importlib
import json
import pickle
import random
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from measure import Measure, deterministic

HERE = Path(__file__).resolve().parent / "kinds"
NAMES = sorted(path.stem for path in HERE.glob("[!_]*.py") if path.stem != "common")
# Torchvision's deterministic way of pooling proposals takes many times the memory of its kernel.
NEVER_DETERMINISTIC = "detector"


class Recorder:
    """PyTorch's own record of a run, and the time at which each step ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.marks: list[dict[str, Any]] = []
        torch.cuda.memory._record_memory_history(context=None, max_entries=20_000_000)

    def mark(self) -> None:
        """The device is idle: one step ends here, the next begins."""
        now = time.time_ns() // 1000
        self.marks.append({"time_us": now, "kind": "step", "name": str(len(self.marks))})

    def write(self, result: dict[str, Any]) -> None:
        """Both files."""
        snapshot = torch.cuda.memory._snapshot()
        with gzip.open(f"{self.path}.pickle.gz", "wb", compresslevel=6) as file:
            pickle.dump(snapshot, file)
        recorded = {
            "alloc_peak": result["allocated_peak"],
            "reserved_peak": result["reserved_peak"],
        }
        with gzip.open(f"{self.path}.marks.json.gz", "wt") as text:
            json.dump({"recorded": recorded, "marks": self.marks}, text)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--settled", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=float, default=1.0, help="times the batch")
    parser.add_argument("--each", action="store_true", help="what Girih did in each step, too")
    parser.add_argument("--snapshot", metavar="PATH")
    parser.add_argument("--exact", action="store_true", help="only deterministic kernels")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, for a try on the CPU")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints what was measured."""
    arguments = parse()
    # Before torch finds the GPU. Which kernels have no deterministic kind is no news here.
    warnings.filterwarnings("ignore")
    if arguments.name != NEVER_DETERMINISTIC:
        deterministic(arguments.exact)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    # No step has as many samples as the next: there is no number to name.
    measure = Measure(arguments.name, arguments.settled, 0, arguments.device, arguments.each)
    recorder = Recorder(arguments.snapshot) if arguments.snapshot else None
    # The package of that name, which stands before this file where Python looks for modules.
    program = importlib.import_module(f"kinds.{arguments.name}")
    common = importlib.import_module("kinds.common")
    step = program.build(
        common.Run(
            device=torch.device(arguments.device),
            seed=arguments.seed,
            steps=arguments.steps,
            size=arguments.size,
            tiny=arguments.tiny,
            draw=random.Random(arguments.seed),
        )
    )
    if recorder:
        torch.cuda.synchronize()
        recorder.mark()
    for number in range(arguments.steps):
        with measure.step():
            loss = step(number)
        if recorder:
            recorder.mark()
        measure.loss(loss)
    if recorder:
        recorder.write(measure.result())
    measure.print()


if __name__ == "__main__":
    main()
