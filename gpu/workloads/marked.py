"""Runs a program with marks of its layers of experts, for recordings: `stweaver table3`.

    python -m girih run --mode stitch --trace moe.girih gpu/workloads/marked.py hf.py qwen-moe

A layer of experts is a module whose class is called so. What it asks for has sizes that only the
run decides, and a recording must say which requests those are.
"""

import runpy
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any


def install(torch: Any, mark: Callable[[str, str], None]) -> None:
    """Sets hooks that mark every forward pass of a layer of experts, by the order of the layers."""
    numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def name_of(module: Any) -> str | None:
        if not type(module).__name__.endswith("Experts"):
            return None
        return f"layers.{numbers.setdefault(module, len(numbers))}.experts"

    def enter(module: Any, _inputs: Any) -> None:
        if name := name_of(module):
            mark("fwd_in", name)

    def leave(module: Any, _inputs: Any, _output: Any) -> None:
        if name := name_of(module):
            mark("fwd_out", name)

    hooks = torch.nn.modules.module
    hooks.register_module_forward_pre_hook(enter)
    hooks.register_module_forward_hook(leave, always_call=True)


def main() -> None:
    """Runs the program, which stands beside this file."""
    import torch

    from girih import _process

    process = _process.enabled()
    if process is None:
        raise SystemExit("run it under `python -m girih run --trace FILE`: nothing records here")
    install(torch, process.watch.mark)
    program = Path(__file__).resolve().parent / sys.argv[1]
    sys.argv = [str(program), *sys.argv[2:]]
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
