"""`python -m girih record`: a program as one rank of a job of any size, on one GPU.

The world is faked (`_fake_world`), the program runs unchanged under the mode `phantom`, in which a
rank may be larger than the card, and its requests are written to a trace file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from girih import _bootstrap, _fake_world, _paths, _process, _run, _settings, _sizes
from girih._errors import GirihError

_USAGE = (
    "python -m girih record --world N --rank R [options] [--] "
    "(script.py | -m module | -c code) [arguments]"
)
# How memory is given, by the word of `--memory`.
_MEMORY = {"phantom": "phantom", "card": "stitch"}

# Options with a value, and those without; both before the program.
_VALUED = (
    "--world",
    "--rank",
    "--per-machine",
    "--output",
    "-o",
    "--memory",
    "--capacity",
    "--solid",
    "--option",
)
_PLAIN = ("--try", "--modules", "--no-hooks", "--help", "-h")


def main(words: list[str]) -> int:
    """Records what the words say. Gives the exit status, or raises what the program raises."""
    own, program = _run.split(words, valued=_VALUED, plain=_PLAIN)
    options = _parser().parse_args(own)
    if not program:
        _parser().error("no program: name a script, -m and a module, or -c and code")
    try:
        if not options.tries:
            _arm(options)
        _fake_world.settle(options.rank, options.world, per_machine=options.per_machine)
    except GirihError as error:
        print(f"girih: {error}", file=sys.stderr)
        return 2
    _fake_world.when_torch_comes(options.rank, options.world)
    _run.execute_shown(program)
    # A no, where a program went well of which there is nothing.
    return 0 if options.tries or _missing() is None else 1


def _arm(options: argparse.Namespace) -> None:
    """Has Girih record once torch comes."""
    output = options.output or f"rank{options.rank}of{options.world}.girih"
    output = str(Path(output).absolute())
    _run.refuse_unwritable("--output", output)
    further = _run.further_options(options.option)
    if "sim" not in further and not _process.has_driver():
        raise GirihError(
            "record on a machine with an NVIDIA GPU, or say --try to see whether the program runs: "
            "there is no NVIDIA driver here (libcuda.so.1 cannot be loaded)"
        )
    if options.capacity is not None:
        further["phantom_capacity"] = _sizes.parse("capacity", options.capacity)
    if options.solid is not None:
        further["phantom_solid"] = _sizes.parse("solid", options.solid)
    if options.modules:
        further["modules"] = True
    if options.no_hooks:
        further["hooks"] = False
    mode = _MEMORY[options.memory]
    settings = _settings.make(mode, plan_dir=False, trace=output, options=further)
    _run.refuse_what_heaps_refuse(settings)
    _settings.to_environ(settings, os.environ)
    _paths.launch(os.environ)
    _bootstrap.reach_children()
    rank = f"rank {options.rank} of {options.world}"
    _process.at_exit(lambda: _say(rank, output), writes=True)
    _process.arm(settings, is_strict=True)


def _missing() -> str | None:
    """Why nothing is recorded; None if something is."""
    enabled = _process.enabled()
    if enabled is None:
        return "it never ran on Girih: it did not import torch, or an error above says why"
    if enabled.missing is not None:
        return enabled.missing
    return None if _process.used_devices() else "it asked for no memory of a GPU"


def _say(rank: str, output: str) -> None:
    """Says at the end where the recording is, or why there is none."""
    missing = _missing()
    if missing is None:
        files = ", ".join(_paths.own(output, device) for device in _process.used_devices())
        print(f"girih: {rank} is recorded in {files}", file=sys.stderr)
    else:
        print(f"girih: nothing of {rank} was recorded: {missing}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m girih record",
        usage=_USAGE,
        description="Records a program as one rank of a job of any size, on one GPU. The others "
        "are not there: collectives return at once, and what the program computes is not what the "
        "job would.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--world", type=_count, metavar="N", required=True, help="processes of the job")
    add("--rank", type=int, metavar="R", required=True, help="which of them this is, from 0")
    add(
        "--per-machine",
        type=_count,
        metavar="N",
        default=1,
        help="processes of a machine, as the program is told (1)",
    )
    add("--output", "-o", metavar="FILE", help="the trace file (rank{R}of{N}.girih)")
    add(
        "--memory",
        choices=list(_MEMORY),
        default="phantom",
        help="phantom (the default): the rank may be larger than the card, and tensors share their "
        "bytes where it is; card: it must fit",
    )
    add("--capacity", metavar="SIZE", help="what a phantom says that it has (4096GiB)")
    add(
        "--solid",
        metavar="SIZE",
        help="what a phantom takes of the card for tensors with bytes of their own, where others "
        "run beside it (three quarters of what is free)",
    )
    add("--try", dest="tries", action="store_true", help="records nothing: does the program run?")
    add("--modules", action="store_true", help="marks the passes of the model's first two levels")
    add("--no-hooks", action="store_true", help="sets no hooks in torch or in frameworks")
    add("--option", metavar="K=V", action="append", default=[], help="a further option; V is JSON")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


_count.__name__ = "number above 0"
