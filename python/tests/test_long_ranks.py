"""Layers that keep some tokens, in jobs of several processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

# Each process trains the model as it is, then with some tokens kept, on data of its own.
PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from long_layers import Model
import girih
from girih._long import replay

replay.DEPTH = 8
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def make(way):
    torch.manual_seed(0)
    model = Model()
    if way == "ddp":
        return DistributedDataParallel(model)
    bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = bfloat16 if way == "fsdp2-bf16" else MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def train(model):
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(3):
        chance = torch.Generator().manual_seed(10 * step + rank)
        loss = model(torch.randint(0, 50, (1, 300 + step), generator=chance)).float().pow(2).mean()
        loss.backward()
        seen.append(loss.item())
        for parameter in model.parameters():
            whole = parameter.grad
            seen.append((whole.to_local() if hasattr(whole, "to_local") else whole).clone())
        optimizer.step()
        optimizer.zero_grad()
    return seen


for way in ("ddp", "fsdp2", "fsdp2-bf16"):
    expected = train(make(way))
    for alpha in (0, "products", 0.5):
        model = make(way)
        girih.long_context(model, alpha=alpha)
        found = train(model)
        pairs = zip(expected, found, strict=True)
        same = all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
        layers = girih.long_context_report(model)["layers"]
        split = [layer["split"] for layer in layers]
        if not same or split != [3] * len(layers):
            sys.exit(f"{way}, alpha {alpha}: {same}, {layers}")
dist.destroy_process_group()
print("all the same")
"""


def test_two_processes_learn_the_same(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
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
