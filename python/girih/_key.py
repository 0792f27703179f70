"""The key under which a run's plan is kept, and found by a later run that is the same.

A key that is too broad finds a plan that does not fit: it is outgrown within an iteration. A key
that is too narrow finds none: the run plans again, as the first one did. Neither does harm, so the
rules stay simple. A key is a hash of

- the program's path and its arguments, without those that only name places and times; of a
  notebook its name and folder;
- the number of processes and the rank of this one, as the launcher tells them (see `_ranks`), and
  the name of a process that the program itself started;
- the GPUs' model, the releases of torch and of Girih.

Which GPU a process has is no part of its key: the same program finds its plan on another one.
Where no launcher tells a rank, the heaps keep a plan for each GPU (by its UUID) beside each other,
so that processes which share out the GPUs by themselves do not write over each other's, and take
another GPU's plan where there is none of their own.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from girih import _ranks

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
    rank = _ranks.rank(environ)
    notebook = _notebook(sys.argv, environ)
    return of(
        program=_program() if notebook is None else notebook,
        # Those of a notebook's process are Jupyter's, and new each time.
        arguments=sys.argv[1:] if notebook is None else [],
        world="" if rank is None or rank.world is None else str(rank.world),
        rank="" if rank is None else str(rank.number),
        # What `torch.multiprocessing` starts has its starter's rank, if any.
        process=multiprocessing.current_process().name,
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
    process: str,
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
        "process": process,
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


# The programs in which notebooks run, by the names of their files.
_KERNELS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")


def _notebook(argv: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """What a notebook is called, if this process is one's; None if it is not.

    A kernel is not told which notebook it serves, and its words name a file for the connection with
    a new number each time. Jupyter's server and VS Code say the name by ways of their own. Without
    one, the folder, in which a kernel starts, stands for it.
    """
    launcher = Path(argv[0]).name if argv else ""
    is_kernel = launcher in _KERNELS or (
        # `python -m ipykernel`, and kernels that were installed under other names.
        any(re.search(r"kernel-[\w-]+\.json$", word) for word in argv[1:])
        and "ipykernel" in sys.modules
    )
    if not is_kernel:
        return None
    main = vars(sys.modules.get("__main__", sys))
    name = environ.get("JPY_SESSION_NAME") or main.get("__vsc_ipynb_file__") or ""
    return f"notebook {Path.cwd() / str(name)}"


def _program() -> str:
    """The path of the program; for `-m` that of the module, for `-c` its text's hash."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-c":
        text = "\0".join(sys.orig_argv) if code is None else code
        return "-c " + hashlib.sha256(text.encode()).hexdigest()
    return str(Path(name).absolute()) if name else ""
