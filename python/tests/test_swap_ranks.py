"""The hooks of swapping in a job of two processes that shard a model, on the CPU: nothing goes."""

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

# Each process trains a model without and with hooks, and looks whose storages are saved.
PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from girih import _native, _saved

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def make():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def train(pack=None):
    model, seen = make(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        chance = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(8, 32, generator=chance)
        loss = model(x).pow(2).mean()
        loss.backward()
        seen += [parameter.grad.to_local().clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return model, seen


_, expected = train()
saved = []


def look(tensor):
    kept = _native.pack(tensor)
    owner = tensor if tensor._base is None else tensor._base
    saved.append((tensor.untyped_storage().data_ptr(), isinstance(owner, nn.Parameter)))
    return kept


with torch.autograd.graph.saved_tensors_hooks(look, _native.unpack):
    model = make()
    gathered = set()
    for layer in model:
        layer.unshard()
        gathered |= {p.untyped_storage().data_ptr() for p in layer.parameters()}
    before = len(saved)
    output = model(torch.randn(8, 32))
    mine = saved[before:]
    of_parameters = [is_one for address, is_one in mine if address in gathered]
    assert of_parameters, "matrices are saved"
    assert all(of_parameters), "the memory of a gather counts as a parameter's, which never goes"
    assert any(address not in gathered for address, _ in mine), "activations may"
    output.sum().backward()
_saved.install(torch)
_, found = train()
assert len(found) == len(expected)
assert all(torch.equal(one, other) for one, other in zip(found, expected))
dist.barrier()
dist.destroy_process_group()
sys.exit(0)
"""


def test_gathered_parameters_never_go_and_gradients_are_equal_to_the_bit():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ
            | {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
