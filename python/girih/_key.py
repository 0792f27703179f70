"""The key under which a run's plan is kept, and found by a later run that is the same.

A key that is too broad finds a plan that does not fit: it is outgrown within an iteration. A key
that is too narrow finds none: the run plans again, as the first one did. Neither does harm, so the
rules stay simple. A key is a hash of

- the program's path and its arguments, without those that only name places and times;
- the number of processes and the rank of this one;
- the GPUs' model, the releases of torch and of Girih.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# The text of the program if it is none of a file: set by `python -m girih run -c`.
code: str | None = None

# Options that say where results go, what a run is called, or how its processes meet.
_UNIMPORTANT = re.compile(
    r"^-{1,2}(\w+[-_])*"
    r"(out|output|log|logs|logging|save|run|name|wandb|tensorboard|master|port|addr|rdzv|report)"
    r"([-_]\w+)*$"
)


def of_process(
    torch_version: str, girih_version: str, environ: Mapping[str, str] = os.environ
) -> str:
    """The key of this process."""
    return of(
        program=_program(),
        arguments=sys.argv[1:],
        world=environ.get("WORLD_SIZE", "1"),
        rank=environ.get("RANK", "0"),
        gpus=gpu_models(),
        torch_version=torch_version,
        girih_version=girih_version,
    )


def of(
    *,
    program: str,
    arguments: Sequence[str],
    world: str,
    rank: str,
    gpus: Iterable[str],
    torch_version: str,
    girih_version: str,
) -> str:
    """The key of a process of which this is known: 32 hexadecimal digits."""
    known = {
        "program": program,
        "arguments": important(arguments),
        "world": world,
        "rank": rank,
        "gpus": sorted(set(gpus)),
        "torch": torch_version,
        "girih": girih_version,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def important(arguments: Sequence[str]) -> list[str]:
    """The arguments without `--output-dir D`, `--run-name=N` and the like."""
    kept: list[str] = []
    skips_value = False
    for argument in arguments:
        if skips_value and not argument.startswith("-"):
            skips_value = False
            continue
        name, equals, _ = argument.partition("=")
        skips_value = False
        if _UNIMPORTANT.match(name):
            skips_value = not equals
        else:
            kept.append(argument)
    return kept


def gpu_models(proc: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The models of the machine's GPUs, as the kernel's driver tells them.

    CUDA would tell them too, but must not be started yet: the program may still fork, or choose
    its devices.
    """
    models = []
    for information in sorted(proc.glob("*/information")):
        try:
            text = information.read_text(errors="replace")
        except OSError:
            continue
        models += re.findall(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
    return models


def _program() -> str:
    """The path of the program; for `-m` that of the module, for `-c` its text's hash."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-c":
        text = "\0".join(sys.orig_argv) if code is None else code
        return "-c " + hashlib.sha256(text.encode()).hexdigest()
    return str(Path(name).absolute()) if name else ""
