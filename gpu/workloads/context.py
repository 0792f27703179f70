"""PyTorch's `context_parallel`, on GPUs and, to try it, on CPUs.

PyTorch has rules for the kernels of GPUs alone. The ring is PyTorch's own on a CPU, too: only the
kernel of CPUs is named to it here (`name_kernel_of_cpus`), as those of GPUs are by PyTorch.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
SEQUENCE = 2
"""The dimension of queries, keys and values that runs over tokens."""


def _of_ranks(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Runs it with the local parts of what it is given, and gives parts of wholes."""
    mesh = args[0].device_mesh
    local = [it.to_local() if isinstance(it, DTensor) else it for it in args]
    gave = run(mesh.get_group(), *local, **kwargs)
    with torch.no_grad():
        return tuple(
            DTensor.from_local(it, mesh, [Shard(SEQUENCE)], run_check=False) for it in gave
        )


def _forward(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    def run(group: Any, q: Any, k: Any, v: Any, *more: Any, **kwargs: Any) -> Any:
        is_causal = bool(more[1])
        attend = ring._templated_ring_attention
        return attend(group, SEQUENCE, ATTENTION.default, q, k, v, is_causal, **kwargs)

    return _of_ranks(run, args, kwargs)


def _backward_of_cpu(**kwargs: Any) -> Any:
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    given = [kwargs.pop(it) for it in names]
    return BACKWARD.default(*given, 0.0, kwargs.pop("is_causal"), **kwargs)


def _backward(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    def run(group: Any, *given: Any, **kwargs: Any) -> Any:
        backward = ring._templated_ring_attention_backward
        before = group, SEQUENCE, _backward_of_cpu, given[0], "grad_out"
        return backward(*before, *given[1:6], bool(given[7]), **kwargs)

    return _of_ranks(run, args, kwargs)


def name_kernel_of_cpus() -> None:
    """From now on the ring has a kernel on a CPU."""
    ring.custom_ops |= {ATTENTION.default: _forward, BACKWARD.default: _backward}


def choose(rotates: str = "allgather", *, balances: bool = True) -> None:
    """How keys and values come: `allgather` or, round the ring, `alltoall`.

    With `balances` a rank has tokens of both ends of the sequence, and as much to do as others.
    """
    ring._cp_options.enable_load_balance = balances
    ring.set_rotate_method(rotates)


def shared(buffers: list[torch.Tensor], device: str) -> contextlib.AbstractContextManager[None]:
    """Within, the buffers of whole sequences are this rank's part, and attention is of all ranks.

    The second dimension of each runs over tokens, which are twice as many ranks' multiple.
    """
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    found: contextlib.AbstractContextManager[None] = context_parallel(
        mesh, buffers=buffers, buffer_seq_dims=[1] * len(buffers)
    )
    return found
