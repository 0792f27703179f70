"""What tests of two ranks share: how their programs begin and end, and what runs them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

BEGINS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import girih
from girih._long import notes

notes.DEPTH = 8
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def shard(model, policy=None):
    policy = policy or MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def of_this_rank(alpha):
    # Each rank its own, where there are two.
    return alpha[rank] if isinstance(alpha, tuple) else alpha


def compare(expected, found, counts, again, where):
    same = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    if not same or counts != again or not all(counts):
        sys.exit(f"same {same}, {len(counts[-1])} and {len(again[-1])} times: {where}")


"""
ENDS = """
dist.destroy_process_group()
print("all the same")
"""


def run_on_two(tmp_path, program):
    """Runs a program on two ranks, between what all begin and end with."""
    (tmp_path / "train.py").write_text(BEGINS + program + ENDS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(Path(__file__).parent), *(it for it in sys.path if it)]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environ = os.environ | common | {"PYTHONPATH": os.pathsep.join(paths)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environ | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            printed, said = process.communicate(timeout=300)
            assert process.returncode == 0, said[-3000:]
            assert printed.endswith("all the same\n")
    finally:
        for process in ranks:
            process.kill()
