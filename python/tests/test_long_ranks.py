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
from girih._long import notes

notes.DEPTH = 8
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
    for alpha, tile in ((0, False), (0, 64), ("products", False), (0.5, False)):
        model = make(way)
        girih.long_context(model, alpha=alpha, mlp_in_tiles=tile)
        found = train(model)
        pairs = zip(expected, found, strict=True)
        same = all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
        layers = girih.long_context_report(model)["layers"]
        split = [layer["split"] for layer in layers]
        in_tiles = {tuple(layer["in_tiles"]) for layer in layers}
        is_right = split == [3] * len(layers) and in_tiles == {("mlp",) if tile else ()}
        if not same or not is_right:
            sys.exit(f"{way}, alpha {alpha}: {same}, {layers}")
dist.destroy_process_group()
print("all the same")
"""


# As above, with attention over the tokens of both ranks. Communication is counted by an outer mode:
# what a replay is answered with does not come to it.
PARALLEL = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from long_parallel import Model, tensor_parallel, train
import girih
from girih._long import notes

notes.DEPTH = 8
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def make(way, is_sharded):
    torch.manual_seed(0)
    if way.startswith("tensor"):
        return tensor_parallel(way.endswith("sequence"))
    model = Model(way)
    if is_sharded:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def check(way, alphas, most, is_sharded=False, batch=1, kept_whole=(), **kwargs):
    expected, counts = train(make(way, is_sharded), batch, **kwargs)
    for alpha, most_kept in zip(alphas, most, strict=True):
        model = make(way, is_sharded)
        # Each rank its own, where there are two.
        girih.long_context(model, alpha=alpha[rank] if isinstance(alpha, tuple) else alpha)
        found, again = train(model, batch, **kwargs)
        same = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        layers = girih.long_context_report(model)["layers"]
        where = f"{way}, sharded {is_sharded}, alpha {alpha}, rank {rank}: {layers}"
        if not same or counts != again or not all(counts):
            sys.exit(f"same {same}, {len(counts[-1])} and {len(again[-1])} times: {where}")
        if most_kept is None:
            continue
        if [layer["split"] for layer in layers] != [3] * len(layers):
            sys.exit(f"not split: {where}")
        for layer in layers:
            kept = layer["bytes_kept"] / layer["bytes_saved"]
            if kept > most_kept or layer["kept_whole"] != list(kept_whole):
                sys.exit(f"kept {kept}: {where}")


PROGRAM
dist.destroy_process_group()
print("all the same")
"""
ULYSSES = """
for way in ("function", "functional", "differentiable"):
    check(f"ulysses, {way}", (0, "products", 0.5), (0.3, 0.77, 0.68))
    check(f"ulysses, {way}", ([0, 0.25, 1],), (None,))
check("ulysses, function", (0, "products", 0.5), (0.3, 0.77, 0.68), batch=2)
check("ulysses, functional", (0, "products", 0.5), (0.3, 0.77, 0.68), is_sharded=True)
"""
RINGS = """
check("ring", (0, "products", 0.5), (0.12, 0.61, 0.49))
check("ring", ([0, 0.25, 1],), (None,))
check("ring", (0, 0.5), (0.12, 0.49), batch=2)
check("ring", (0, "products", 0.5), (0.12, 0.61, 0.49), is_sharded=True)
check("gathered", (0, "products"), (0.16, 0.4))
check("gathered", (0.5,), (0.84,), kept_whole=["attention"])
"""
# Packed sequences and padding are a mask of all tokens, on every rank.
MASKS = """
for kind in ("packed", "padded"):
    for batch in (1, 2):
        check("ulysses, function", (0, "products"), (0.4, 0.8), batch=batch, mask=kind)
        check("ulysses, function", (0.5,), (None,), batch=batch, mask=kind)
"""
TENSORS = """
check("tensor", (0, "products", 0.5), (0.27, 0.67, 0.67))
check("tensor, sequence", (0, "products"), (0.42, 0.83))
check("tensor, sequence", (0.5, [0, 0.25, 1]), (None, None))
"""
# What one keeps whole, or leaves alone, the other computes again.
OTHERS = """
for way in ("ulysses, function", "ulysses, functional", "ring", "gathered", "tensor"):
    check(way, ((0, 1), ("products", 0), ([0, 1, 0.5], [1, 0.25, 0])), (None, None, None))
original = girih._long.layer.Layer._may_run_twice
if rank == 0:
    girih._long.layer.Layer._may_run_twice = lambda layer, call: layer._refuse("on purpose")
check("ring", (0,), (None,))
check("ulysses, functional", (0,), (None,))
"""
PROGRAMS = {
    "ulysses": ULYSSES,
    "rings": RINGS,
    "masks": MASKS,
    "tensors": TENSORS,
    "others": OTHERS,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_ranks_say_to_each_other_is_said_once(name, tmp_path):
    run_on_two(tmp_path, PARALLEL.replace("PROGRAM", PROGRAMS[name]))


def test_two_processes_learn_the_same(tmp_path):
    run_on_two(tmp_path, PROGRAM)


def run_on_two(tmp_path, program):
    (tmp_path / "train.py").write_text(program)
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
