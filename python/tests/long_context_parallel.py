"""PyTorch's `context_parallel` on a CPU, which has rules for the kernels of GPUs alone.

The ring itself is PyTorch's: only the kernel of CPUs is named to it, as those of GPUs are.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from long_parallel import WAYS, WIDTH, Block, Count
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
SEQUENCE = 2


def _of_ranks(run, args, kwargs):
    """Runs it with the local parts of what it is given, and gives parts of wholes."""
    mesh = args[0].device_mesh
    local = [it.to_local() if isinstance(it, DTensor) else it for it in args]
    gave = run(mesh.get_group(), *local, **kwargs)
    with torch.no_grad():
        return tuple(
            DTensor.from_local(it, mesh, [Shard(SEQUENCE)], run_check=False) for it in gave
        )


def _forward(_op, args, kwargs):
    def run(group, q, k, v, *more, **kwargs):
        is_causal = bool(more[1])
        attend = ring._templated_ring_attention
        return attend(group, SEQUENCE, ATTENTION.default, q, k, v, is_causal, **kwargs)

    return _of_ranks(run, args, kwargs)


def _backward_of_cpu(**kwargs):
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    given = [kwargs.pop(it) for it in names]
    return BACKWARD.default(*given, 0.0, kwargs.pop("is_causal"), **kwargs)


def _backward(_op, args, kwargs):
    def run(group, *given, **kwargs):
        backward = ring._templated_ring_attention_backward
        before = group, SEQUENCE, _backward_of_cpu, given[0], "grad_out"
        return backward(*before, *given[1:6], bool(given[7]), **kwargs)

    return _of_ranks(run, args, kwargs)


def _attend(q, k, v):
    # The function is another within `context_parallel`.
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


WAYS["patched"] = _attend
ring.custom_ops |= {ATTENTION.default: _forward, BACKWARD.default: _backward}


def _without_mask(_layer, args, kwargs):
    # Of places that are not in order transformers makes a mask. The ring has one of its own.
    return args, kwargs | {"attention_mask": None}


class Llama(nn.Module):
    """Hugging Face's, unmodified."""

    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        sizes = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2}
        settings = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=50)
        settings._attn_implementation = "sdpa"
        self.model = LlamaModel(settings)
        self.layers = self.model.layers
        for layer in self.layers:
            layer.register_forward_pre_hook(_without_mask, with_kwargs=True)

    def forward(self, ids, place):
        states = self.model(input_ids=ids, position_ids=place.long(), use_cache=False)
        return states.last_hidden_state


class Model(nn.Module):
    """Is given the tokens of this rank, and where they stand in the sequence."""

    def __init__(self, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(Block("patched") for _ in range(layers))

    def forward(self, ids, place):
        x, cos = self.embedding(ids), place.mul(0.03).cos()[:, None, :, None]
        for layer in self.layers:
            x = layer(x, cos.to(x.dtype))
        return x


def train(model, batch=1, dtype=None, rotates="allgather", balances=True):
    """Three steps, of lengths that differ: losses and gradients, and what was communicated."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ring._cp_options.enable_load_balance = balances
    ring.set_rotate_method(rotates)
    seen, counts = [], []
    for step in range(3):
        tokens = 2 * dist.get_world_size() * (150 + step)
        chance = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 50, (batch, tokens), generator=chance)
        place = torch.arange(tokens).expand(batch, -1).float().contiguous()
        # Both become those of this rank.
        with context_parallel(mesh, buffers=[ids, place], buffer_seq_dims=[1, 1]):
            mixed = torch.autocast("cpu", dtype, enabled=dtype is not None)
            with Count() as count:
                loss = mixed(model)(ids, place).float().pow(2).mean()
                loss.backward()
        counts.append(count.names)
        seen.append(loss.detach())
        for parameter in model.parameters():
            whole = parameter.grad
            seen.append((whole.to_local() if hasattr(whole, "to_local") else whole).clone())
        model.zero_grad()
    return seen, counts
