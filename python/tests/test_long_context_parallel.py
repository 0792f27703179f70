"""Layers split by tokens under PyTorch's `context_parallel`, on two ranks."""

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip(
    "torch.distributed.tensor.experimental._context_parallel",
    reason="this torch has another context_parallel, or none",
    exc_type=ImportError,
)
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

from test_long_ranks import run_on_two  # noqa: E402

# What is communicated is counted: in forward and backward, and never in a replay.
PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from long_context_parallel import Llama, Model, train
import girih
from girih._long import notes

notes.DEPTH = 8
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def make(kind, is_sharded):
    torch.manual_seed(0)
    model = kind()
    if is_sharded:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def check(kind=Model, is_sharded=False, alphas=(0, "products", 0.5), tile=False, **kwargs):
    expected, counts = train(make(kind, is_sharded), **kwargs)
    for alpha in alphas:
        model = make(kind, is_sharded)
        # Each rank its own, where there are two.
        is_one = not isinstance(alpha, (list, tuple))
        alpha = alpha[rank] if isinstance(alpha, tuple) else alpha
        girih.long_context(model, alpha=alpha, mlp_in_tiles=tile)
        found, again = train(model, **kwargs)
        same = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        layers = girih.long_context_report(model)["layers"]
        where = f"{kind}, {is_sharded}, {kwargs}, alpha {alpha}, rank {rank}: {layers}"
        if not same or counts != again or not all(counts):
            sys.exit(f"same {same}, {len(counts[-1])} and {len(again[-1])} times: {where}")
        for layer in layers:
            is_in_tiles = layer["in_tiles"] == (["mlp"] if tile else [])
            if is_one and (layer["split"] != 3 or not is_in_tiles):
                sys.exit(f"not split: {where}")
            if alpha == 0 and layer["bytes_kept"] > 0.2 * layer["bytes_saved"]:
                sys.exit(f"kept: {where}")


CHECKS
dist.destroy_process_group()
print("all the same")
"""
CHECKS = {
    "ways": """
check()
check(rotates="alltoall", alphas=(0, 0.5))
check(balances=False, alphas=(0, 0.5))
check(batch=2)
check(dtype=torch.bfloat16)
""",
    "others": """
check(alphas=([0, 0.25, 1], (0, 1), ("products", 0.5)))
""",
    "sharded": """
check(is_sharded=True)
check(is_sharded=True, tile=64, alphas=(0,))
""",
    "tiles": """
check(tile=64, alphas=(0,))
check(tile=64, alphas=(0,), batch=2)
""",
    "llama": """
check(Llama)
check(Llama, tile=64, alphas=(0,))
""",
}


@pytest.mark.parametrize("name", CHECKS)
def test_what_context_parallel_communicates_is_said_once(name, tmp_path):
    if name == "llama" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    run_on_two(tmp_path, PROGRAM.replace("CHECKS", CHECKS[name]))
