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
from collections.abc import Mapping

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


def on_this_machine(environ: Mapping[str, str] = os.environ) -> int:
    """The job's processes on this machine, as far as a launcher tells; else 1."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        text = environ.get(name, "")
        if text.isdecimal() and int(text) > 0:
            return int(text)
    return 1
