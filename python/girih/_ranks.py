"""Which of a job's processes this one is, as what launched it tells.

Launchers number their processes by variables of their own. Where several have spoken, the one that
is nearest to the program is right: inside a batch script of SLURM that calls mpirun or torchrun,
SLURM's variables speak of the script. Hence the order, in which the first that tells a rank is
heard:

| launcher | rank | processes |
|:--|:--|:--|
| torchrun, Accelerate, DeepSpeed | RANK | WORLD_SIZE |
| Open MPI | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE |
| MVAPICH2 | MV2_COMM_WORLD_RANK | MV2_COMM_WORLD_SIZE |
| MPICH, Intel MPI, Cray | PMI_RANK | PMI_SIZE |
| what speaks PMIx | PMIX_RANK | PMIX_SIZE, else SLURM's |
| SLURM (srun) | SLURM_PROCID | SLURM_STEP_NUM_TASKS, SLURM_NTASKS, SLURM_NPROCS |
| launchers that number the processes of one machine | LOCAL_RANK | LOCAL_WORLD_SIZE |
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

RECORDED_ALONE = "GIRIH_RECORDED_ALONE"
"""Set in a process whose world is faked."""

_SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")

# Variable of the rank, and those of the number of processes: the first that is there.
_LAUNCHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("PMIX_RANK", ("PMIX_SIZE", *_SLURM_SIZES)),
    ("SLURM_PROCID", _SLURM_SIZES),
    ("LOCAL_RANK", ("LOCAL_WORLD_SIZE",)),
)

# Ranks within a machine.
_LOCAL = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)

# How many processes a machine has, by launcher; of SLURM the list of a step, then that of a job.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)
_SLURM_LOCAL_SIZES = (
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
)
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Rank:
    """The place of a process in its job."""

    number: int
    world: int | None
    """Processes of the job; None if the launcher does not say."""

    is_recorded_alone: bool = False
    """The others are not there: `python -m girih record` fakes them."""

    @property
    def is_alone(self) -> bool:
        """True if no other process of the job is known to be there."""
        return self.world == 1 or self.is_recorded_alone


def rank(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """The rank that the launcher has given this process; None if none has."""
    for name, sizes in _LAUNCHERS:
        number = _number(environ, name)
        if number is not None:
            found = (_number(environ, size) for size in sizes)
            world = next((size for size in found if size is not None), None)
            return Rank(number, world, is_recorded_alone=RECORDED_ALONE in environ)
    return None


def is_first_of_machine(environ: Mapping[str, str] = os.environ) -> bool:
    """True if this process is the one that speaks for all ranks of its machine."""
    local = (_number(environ, name) for name in _LOCAL)
    return next((number for number in local if number is not None), 0) == 0


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """The number that a variable holds; None if it holds none."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def on_this_machine(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """The job's processes on this machine; 1 if nothing tells of others.

    Where it is known that there are several and no launcher tells how many are here, there is one
    for each GPU of the machine. What launches one for each of them often shows it that one alone,
    so the devices of the system are counted: CUDA is not asked, which would begin it.
    """
    told = (_number(environ, name) for name in _LOCAL_SIZES)
    here = next((number for number in told if number), None)
    launched = rank(environ)
    if here is not None or launched is None or launched.is_alone:
        return here or 1
    if _number(environ, "SLURM_PROCID") == launched.number:
        counts = (_tasks_of_node(environ, name) for name in _SLURM_LOCAL_SIZES)
        here = next((number for number in counts if number), None)
    # A device is nvidia0, nvidia1 ...; others stand for the driver.
    gpus = sum(device.name[6:].isdecimal() for device in devices.glob("nvidia*"))
    world = launched.world or gpus
    return here or max(min(world, gpus or world), 1)


def _tasks_of_node(environ: Mapping[str, str], name: str) -> int | None:
    """SLURM's processes of this machine, by a list of those of each ("8", "8(x2)", "4,2(x3)")."""
    counts: list[int] = []
    for part in environ.get(name, "").split(","):
        found = _TASKS.fullmatch(part)
        if found is None:
            return None
        counts += [int(found[1])] * int(found[2] or 1)
    node = _number(environ, "SLURM_NODEID")
    # The most, where it is not told which machine this is.
    return counts[node] if node is not None and node < len(counts) else max(counts)
