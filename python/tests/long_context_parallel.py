"""Models under PyTorch's `context_parallel` on a CPU, by `gpu/workloads/context.py`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from long_parallel import WAYS, WIDTH, Block, Count, seen_of
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "gpu" / "workloads"))
import context


def _attend(q, k, v):
    # The function is another within `context_parallel`.
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


WAYS["patched"] = _attend
context.name_kernel_of_cpus()


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
    context.choose(rotates, balances=balances)
    seen, counts = [], []
    for step in range(3):
        tokens = 2 * dist.get_world_size() * (150 + step)
        chance = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 50, (batch, tokens), generator=chance)
        place = torch.arange(tokens).expand(batch, -1).float().contiguous()
        # Both become those of this rank.
        with context.shared([ids, place], "cpu"):
            mixed = torch.autocast("cpu", dtype, enabled=dtype is not None)
            with Count() as count:
                loss = mixed(model)(ids, place).float().pow(2).mean()
                loss.backward()
        counts.append(count.names)
        seen += seen_of(model, loss)
        model.zero_grad()
    return seen, counts
