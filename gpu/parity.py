"""Everything that PyTorch says and does about GPU memory, checked one by one.

    python gpu/parity.py                                    torch's own allocator
    python -m girih run --mode expandable gpu/parity.py     Girih
    python gpu/parity.py [--list] [NAME ...]                some checks

A line for each check: PASS, FAIL with the reason, or SKIP with what is missing. Exit status 1 if
anything failed. Checks that could leave CUDA broken run in a process of their own, which this
script starts as itself; Girih reaches those through the environment. The checks are in `checks/`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from checks.registry import ALONE, CHECKS, CHILD_SECONDS_MAX, Skip

# In this order, and within a subject in the order of its file, the checks run.
SUBJECTS = (
    "stats",
    "accounts",
    "snapshots",
    "history",
    "settings",
    "configured",
    "views",
    "held",
    "limits",
    "reuse",
    "uncached",
    "pinned",
    "lake",
    "long",
    "out_of_memory",
    "swapping",
    "optimizers",
    "streams",
    "pools",
    "captures",
    "checkpoints",
    "graphs",
    "mempools",
    "scopes",
    "lending",
    "kernels",
    "starts",
    "processes",
    "devices",
    "threads",
    "life",
)
for subject in SUBJECTS:
    importlib.import_module(f"checks.{subject}")


def clean() -> None:
    """Back to a process that holds nothing."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of features in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_here(name: str) -> tuple[str, str]:
    """Runs a check in this process. Gives the verdict and why."""
    try:
        clean()
        with quiet():
            CHECKS[name]()
        torch.cuda.synchronize()
    except Skip as reason:
        return "SKIP", str(reason)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        text = str(error).strip().splitlines()
        return "FAIL", f"{type(error).__name__}: {text[0] if text else ''}"
    return "PASS", ""


def run_alone(name: str) -> tuple[str, str]:
    """Runs a check in a process of its own, which is this script."""
    try:
        result = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--child", name],
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "FAIL", f"it did not end in {CHILD_SECONDS_MAX} s"
    for line in result.stdout.splitlines():
        if line.startswith("verdict "):
            verdict, _, reason = line.removeprefix("verdict ").partition(" ")
            # A check that passes and a process that then dies have not passed.
            if verdict == "PASS" and result.returncode != 0:
                return "FAIL", f"passed, but the process ended with status {result.returncode}"
            return verdict, reason
    last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return "FAIL", f"the process ended with status {result.returncode}: {last}"


def describe() -> str:
    """What is checked, on one line."""
    mode = os.environ.get("GIRIH_MODE")
    allocator = f"Girih, {mode}" if mode else torch.cuda.get_allocator_backend()
    if mode and mode != "off":
        import girih

        if not girih.is_enabled():
            raise SystemExit("GIRIH_MODE is set, and Girih is not enabled: see the warning above")
    return f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, allocator: {allocator}"


def main(words: list[str]) -> int:
    """Runs the checks that are named, or all."""
    if words[:1] == ["--list"]:
        for name, function in CHECKS.items():
            print(f"{name:<28} {inspect.getdoc(function)}")
        return 0
    if not torch.cuda.is_available():
        print("SKIPPED: there is no GPU here")
        return 0
    if words[:1] == ["--child"]:
        describe()  # refuses to check another allocator than is meant
        verdict, reason = run_here(words[1])
        print("verdict", verdict, reason, flush=True)
        return 0
    if unknown := [name for name in words if name not in CHECKS]:
        print(f"no check is called {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    print(describe(), flush=True)
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for name in words or CHECKS:
        start = time.perf_counter()
        verdict, reason = run_alone(name) if name in ALONE else run_here(name)
        counts[verdict] += 1
        seconds = time.perf_counter() - start
        print(f"{verdict} {name:<28} {seconds:6.1f} s  {reason}".rstrip(), flush=True)
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
