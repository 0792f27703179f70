"""Layers split by tokens under PyTorch's `context_parallel`, on two ranks."""

import importlib.util

import pytest
from long_two import run_on_two

pytest.importorskip(
    "torch.distributed.tensor.experimental._context_parallel",
    reason="this torch has another context_parallel, or none",
    exc_type=ImportError,
)

# What is communicated is counted: in forward and backward, and never in a replay.
PROGRAM = """
from long_context_parallel import Llama, Model, train


def make(kind, is_sharded):
    torch.manual_seed(0)
    return shard(kind()) if is_sharded else kind()


def check(kind=Model, is_sharded=False, alphas=(0, "products", 0.5), tile=False, **kwargs):
    expected, counts = train(make(kind, is_sharded), **kwargs)
    for alpha in alphas:
        model = make(kind, is_sharded)
        is_one, alpha = not isinstance(alpha, (list, tuple)), of_this_rank(alpha)
        girih.long_context(model, alpha=alpha, mlp_in_tiles=tile)
        found, again = train(model, **kwargs)
        layers = girih.long_context_report(model)["layers"]
        where = f"{kind}, {is_sharded}, {kwargs}, alpha {alpha}, rank {rank}: {layers}"
        compare(expected, found, counts, again, where)
        for layer in layers:
            is_in_tiles = layer["in_tiles"] == (["mlp"] if tile else [])
            if is_one and (layer["split"] != 3 or not is_in_tiles):
                sys.exit(f"not split: {where}")
            if alpha == 0 and layer["bytes_kept"] > 0.2 * layer["bytes_saved"]:
                sys.exit(f"kept: {where}")


CHECKS
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
