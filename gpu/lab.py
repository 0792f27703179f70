"""The cases of `girih lab` on torch's own allocator: does it reserve what the laboratory says?

    python gpu/lab.py
    python gpu/lab.py graphs-small-first -o lab.json

Each case is a process with the case's settings, a private pool of its own, and graphs that are
captured into it. After every step outside of a capture the bytes of the pool's segments are held
against those of `girih lab --json`. 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB}


def parsed(operation: str) -> tuple[str, list[int]]:
    """What a step does, of its text: a word, and sizes in bytes or numbers of blocks."""
    if found := re.fullmatch(r"allocate (?:(\d+) x )?([\d.]+) (bytes|KiB|MiB)", operation):
        size = int(float(found[2]) * UNITS[found[3]])
        return "allocate", [size] * int(found[1] or 1)
    if operation.startswith("free #"):
        return "free", [int(number) for number in re.findall(r"#(\d+)", operation)]
    words = {
        "free everything": "free all",
        "capture a graph": "capture",
        "end the capture": "end capture",
    }
    return words[operation], []


class Pool:
    """A private pool of torch, what is allocated in it, and the graphs that were captured."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.pool = torch.cuda.MemPool()
        self.stream = torch.cuda.Stream()
        self.blocks: list[Any] = []
        self.graphs: list[Any] = []
        self.is_capturing = False

    def run(self, operation: str) -> None:
        """One step."""
        what, numbers = parsed(operation)
        if what == "allocate":
            self.allocate(numbers)
        elif what == "capture":
            self.graphs.append(self.torch.cuda.CUDAGraph())
            self.torch.cuda.synchronize()
            # On the stream of all requests, so that the graph has what was free on it.
            self.graphs[-1].capture_begin(pool=self.pool.id)
            self.is_capturing = True
        elif what == "end capture":
            self.graphs[-1].capture_end()
            self.is_capturing = False
        else:
            for number in numbers if what == "free" else range(len(self.blocks)):
                self.blocks[number] = None

    def allocate(self, sizes: list[int]) -> None:
        """Tensors of so many bytes each. A capture has its pool already."""
        torch = self.torch
        for size in sizes:
            if self.is_capturing:
                block = torch.empty(size, dtype=torch.uint8, device="cuda")
            else:
                with torch.cuda.use_mem_pool(self.pool):
                    block = torch.empty(size, dtype=torch.uint8, device="cuda")
            self.blocks.append(block)

    def reserved(self) -> int:
        """Bytes of its segments."""
        segments = self.torch.cuda.memory_snapshot(self.pool.id)
        return sum(segment["total_size"] for segment in segments)


def on_torch(case: dict[str, Any]) -> list[int | None]:
    """Bytes that torch reserves after each step; None within a capture."""
    import torch

    pool = Pool(torch)
    reserved: list[int | None] = []
    with torch.cuda.stream(pool.stream):
        for step in case["steps"]:
            pool.run(step["operation"])
            reserved.append(None if pool.is_capturing else pool.reserved())
    return reserved


def compared(case: dict[str, Any]) -> dict[str, Any]:
    """A case in a process of its own."""
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": case["settings"]}
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ours = [step["reserved_bytes"] for step in case["steps"]]
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        return {"case": case["name"], "girih": ours, "error": said[-1]}
    torchs = json.loads(done.stdout.splitlines()[-1])
    pairs = zip(ours, torchs, strict=True)
    same = all(other is None or other == own for own, other in pairs)
    return {"case": case["name"], "girih": ours, "torch": torchs, "equal": same}


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="their names; all without")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, help="keeps what was found, as JSON")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(on_torch(json.loads(options.case))))
        return 0
    words = [sys.executable, "-m", "girih", "lab", "--json", *options.cases]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = []
    for case in json.loads(said)["cases"]:
        one = compared(case)
        found.append(one)
        mebibytes = [None if b is None else b // MIB for b in one.get("torch", [])]
        verdict = one.get("error") or ("equal" if one["equal"] else "DIFFERS")
        print(f"{one['case']:<28} {verdict:<8} {mebibytes}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(not all(one.get("equal") for one in found))


if __name__ == "__main__":
    sys.exit(main())
