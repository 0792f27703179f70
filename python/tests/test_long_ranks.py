"""Layers that keep some tokens, in jobs of several processes."""

import pytest
from long_two import run_on_two

# Each process trains the model as it is, then with some tokens kept, on data of its own.
PROGRAM = """
from torch.nn.parallel import DistributedDataParallel

from long_layers import Model
from long_parallel import seen_of


def make(way):
    torch.manual_seed(0)
    model = Model()
    if way == "ddp":
        return DistributedDataParallel(model)
    bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return shard(model, bfloat16 if way == "fsdp2-bf16" else None)


def train(model):
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(3):
        chance = torch.Generator().manual_seed(10 * step + rank)
        loss = model(torch.randint(0, 50, (1, 300 + step), generator=chance)).float().pow(2).mean()
        loss.backward()
        seen += seen_of(model, loss)
        optimizer.step()
        optimizer.zero_grad()
    return seen


for way in ("ddp", "fsdp2", "fsdp2-bf16"):
    expected = train(make(way))
    for alpha, tile in ((0, False), (0, 64), ("products", False), (0.5, False)):
        model = make(way)
        girih.long_context(model, alpha=alpha, mlp_in_tiles=tile)
        found = train(model)
        same = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        layers = girih.long_context_report(model)["layers"]
        split = [layer["split"] for layer in layers]
        in_tiles = {tuple(layer["in_tiles"]) for layer in layers}
        is_right = split == [3] * len(layers) and in_tiles == {("mlp",) if tile else ()}
        if not same or not is_right:
            sys.exit(f"{way}, alpha {alpha}: {same}, {layers}")
"""


# As above, with attention over the tokens of both ranks. Communication is counted by an outer mode:
# what a replay is answered with does not come to it.
PARALLEL = """
from long_parallel import Model, tensor_parallel, train


def make(way, is_sharded):
    torch.manual_seed(0)
    if way.startswith("tensor"):
        return tensor_parallel(way.endswith("sequence"))
    return shard(Model(way)) if is_sharded else Model(way)


def check(way, alphas, most, is_sharded=False, batch=1, kept_whole=(), **kwargs):
    expected, counts = train(make(way, is_sharded), batch, **kwargs)
    for alpha, most_kept in zip(alphas, most, strict=True):
        model = make(way, is_sharded)
        girih.long_context(model, alpha=of_this_rank(alpha))
        found, again = train(model, batch, **kwargs)
        layers = girih.long_context_report(model)["layers"]
        where = f"{way}, sharded {is_sharded}, alpha {alpha}, rank {rank}: {layers}"
        compare(expected, found, counts, again, where)
        if most_kept is None:
            continue
        if [layer["split"] for layer in layers] != [3] * len(layers):
            sys.exit(f"not split: {where}")
        for layer in layers:
            kept = layer["bytes_kept"] / layer["bytes_saved"]
            if kept > most_kept or layer["kept_whole"] != list(kept_whole):
                sys.exit(f"kept {kept}: {where}")


PROGRAM
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
