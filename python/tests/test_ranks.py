"""Which of a job's processes this one is, as launchers tell it."""

import pytest

from girih import _key, _ranks
from girih._ranks import Rank

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "6",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "PMIX_RANK": "6",
}
# What every process within a batch script of SLURM has, whoever starts it.
SLURM_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}
SRUN = {"SLURM_PROCID": "7", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3", "SLURM_JOB_ID": "99"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (TORCHRUN, Rank(5, 8)),
        (OPEN_MPI, Rank(6, 16)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"}, Rank(1, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, Rank(3, 4)),
        ({"PMIX_RANK": "2"}, Rank(2, None)),
        ({"PMIX_RANK": "2", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, Rank(2, 4)),
        (SRUN, Rank(7, 16)),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "12"}, Rank(7, 12)),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Rank(1, 2)),
        # The nearest launcher is right.
        (SLURM_SCRIPT | OPEN_MPI, Rank(6, 16)),
        (SLURM_SCRIPT | TORCHRUN, Rank(5, 8)),
        (SRUN | OPEN_MPI | TORCHRUN, Rank(5, 8)),
        # An allocation without a step, and what is no number.
        ({"SLURM_NTASKS": "16", "WORLD_SIZE": "8"}, None),
        ({"RANK": "../x", "WORLD_SIZE": "8"}, None),
        ({"RANK": "-1"}, None),
        ({"RANK": "", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Rank(1, 2)),
        ({}, None),
    ],
)
def test_a_rank_is_what_the_nearest_launcher_tells(environ, rank):
    assert _ranks.rank(environ) == rank


@pytest.mark.parametrize(
    ("environ", "is_first"),
    [
        ({}, True),
        (TORCHRUN, False),
        (TORCHRUN | {"LOCAL_RANK": "0"}, True),
        (OPEN_MPI, False),
        (SRUN, False),
        (SRUN | {"SLURM_LOCALID": "0"}, True),
    ],
)
def test_one_process_of_a_machine_speaks_for_all(environ, is_first):
    assert _ranks.is_first_of_machine(environ) == is_first


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, SRUN, {"PMI_RANK": "5"}, {}])
def test_every_rank_has_a_key_of_its_own_which_is_the_same_at_the_next_launch(environ):
    def key(environ):
        return _key.of_process("2.11.0", "0.1.0", environ)

    # What is new at each launch, or of the machine that the rank came to.
    another = {"SLURM_JOB_ID": "100", "SLURM_NODEID": "4", "MASTER_PORT": "29501"}
    assert key(environ | another | {"CUDA_VISIBLE_DEVICES": "3"}) == key(environ)
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    told = [name for name in names if name in environ]
    for name in told:
        assert key(environ | {name: "0"}) != key(environ), name
    assert (len(told) > 0) == bool(environ)


@pytest.mark.parametrize(
    ("environ", "here"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, 4),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        (SLURM_SCRIPT | TORCHRUN | {"LOCAL_WORLD_SIZE": "8", "SLURM_NTASKS_PER_NODE": "1"}, 8),
        # SLURM tells it of every machine.
        (SRUN | {"SLURM_NTASKS_PER_NODE": "8"}, 8),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "6(x2)", "SLURM_NTASKS_PER_NODE": "8"}, 6),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4,2(x3)", "SLURM_NODEID": "0"}, 4),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4,2(x3)", "SLURM_NODEID": "3"}, 2),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),4"}, 4),
        (SRUN | {"RANK": "7", "WORLD_SIZE": "16", "SLURM_TASKS_PER_NODE": "5(x2)"}, 5),
        # Nobody tells it: one for each of three GPUs, and no more than there are.
        (SRUN, 3),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "many", "SLURM_NTASKS_PER_NODE": "0"}, 3),
        (TORCHRUN, 3),
        (OPEN_MPI, 3),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 2),
        ({"PMIX_RANK": "1"}, 3),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 1),
        ({"RANK": "0", "WORLD_SIZE": "64", _ranks.RECORDED_ALONE: "1"}, 1),
    ],
)
def test_as_many_processes_share_the_memory_of_a_machine_as_are_on_it(environ, here, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert _ranks.on_this_machine(environ, tmp_path) == here


def test_where_no_gpu_is_seen_all_processes_may_be_here(tmp_path):
    assert _ranks.on_this_machine({"PMI_RANK": "1", "PMI_SIZE": "4"}, tmp_path) == 4
    assert _ranks.on_this_machine({"PMIX_RANK": "1"}, tmp_path) == 1
