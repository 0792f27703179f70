"""Attention of which each of several ranks has a part of the tokens, in the ways that there are."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn import functional as differentiable
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HEADS = 32, 4


class Exchange(torch.autograd.Function):
    """Parts of the first dimension go to one rank each; what comes is in the order of ranks."""

    @staticmethod
    def forward(_ctx, x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous())
        return y

    @staticmethod
    def backward(_ctx, gradient):
        x = torch.empty_like(gradient)
        dist.all_to_all_single(x, gradient.contiguous())
        return x


def by_functional(x):
    parts = [x.shape[0] // dist.get_world_size()] * dist.get_world_size()
    return functional.all_to_all_single_autograd(x.contiguous(), parts, parts, dist.group.WORLD)


def by_differentiable(x):
    return differentiable.all_to_all_single(torch.empty_like(x), x.contiguous())


EXCHANGES = {
    "function": Exchange.apply,
    "functional": by_functional,
    "differentiable": by_differentiable,
}


def to_heads(x, exchange):
    """`[batch, heads, tokens here, width]` to `[batch, heads here, tokens, width]`."""
    ranks = dist.get_world_size()
    batch, heads, tokens, width = x.shape
    x = x.reshape(batch, ranks, heads // ranks, tokens, width).transpose(0, 1)
    x = exchange(x.contiguous())
    return x.permute(1, 2, 0, 3, 4).reshape(batch, heads // ranks, ranks * tokens, width)


def to_tokens(x, exchange):
    """The way back."""
    ranks = dist.get_world_size()
    batch, heads, tokens, width = x.shape
    x = x.reshape(batch, heads, ranks, tokens // ranks, width).permute(2, 0, 1, 3, 4)
    x = exchange(x.contiguous())
    return x.transpose(0, 1).reshape(batch, ranks * heads, tokens // ranks, width)


def ulysses(exchange, q, k, v, mask=None):
    """Every rank has all tokens of some heads while it attends. `mask` is of all tokens."""
    q, k, v = (to_heads(it, exchange) for it in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return to_tokens(y, exchange)


class Ring(torch.autograd.Function):
    """Keys and values go round; what each gives is put together by its log-sum-exp."""

    @staticmethod
    def forward(ctx, q, k, v):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        scale, pair = q.shape[-1] ** -0.5, torch.stack((k, v))
        y, total = torch.zeros_like(q), q.new_full(q.shape[:-1], float("-inf"))
        for step in range(ranks):
            source = (rank - step) % ranks
            if source <= rank:
                scores = (q @ pair[0].transpose(-1, -2)) * scale
                if source == rank:
                    scores = scores.masked_fill(later(scores), float("-inf"))
                new = torch.logaddexp(total, scores.logsumexp(-1))
                y = y * (total - new).exp()[..., None] + (scores - new[..., None]).exp() @ pair[1]
                total = new
            if step < ranks - 1:
                pair = onward(pair)
        ctx.save_for_backward(q, k, v, y, total)
        return y

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, y, total = ctx.saved_tensors
        rank, ranks = dist.get_rank(), dist.get_world_size()
        scale, pair = q.shape[-1] ** -0.5, torch.stack((k, v))
        sums, dq = torch.zeros_like(pair), torch.zeros_like(q)
        rows = (gradient * y).sum(-1, keepdim=True)
        for step in range(ranks):
            source = (rank - step) % ranks
            if source <= rank:
                scores = (q @ pair[0].transpose(-1, -2)) * scale
                if source == rank:
                    scores = scores.masked_fill(later(scores), float("-inf"))
                weights = (scores - total[..., None]).exp()
                inner = weights * (gradient @ pair[1].transpose(-1, -2) - rows) * scale
                dq = dq + inner @ pair[0]
                sums = sums + torch.stack(
                    (inner.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ gradient)
                )
            pair, sums = onward(pair), onward(sums)
        return dq, sums[0], sums[1]


def later(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def onward(x):
    """To the next rank; gives what the one before had."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    going = dist.isend(x.contiguous(), (rank + 1) % ranks)
    coming = dist.irecv(y, (rank - 1) % ranks)
    going.wait()
    coming.wait()
    return y


def gathered(q, k, v):
    """Keys and values of all ranks come to each."""
    first = dist.get_rank() * q.shape[2]
    k, v = (torch.cat(differentiable.all_gather(it.contiguous()), 2) for it in (k, v))
    mask = torch.arange(k.shape[2])[None] <= first + torch.arange(q.shape[2])[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


WAYS = {
    **{f"ulysses, {it}": functools.partial(ulysses, EXCHANGES[it]) for it in EXCHANGES},
    "ring": Ring.apply,
    "gathered": gathered,
    "alone": functools.partial(F.scaled_dot_product_attention, is_causal=True),
}


class Attention(nn.Module):
    """Projections and communication in one module, as in models that are not changed for it."""

    def __init__(self, way):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o, self.way = nn.Linear(WIDTH, WIDTH), way

    def forward(self, x, cos, mask=None):
        batch, tokens, _ = x.shape
        # Of tensor parallelism the heads that are here.
        q, k, v = (
            it(x).view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2)
            for it in (self.q, self.k, self.v)
        )
        more = () if mask is None else (mask,)
        y = WAYS[self.way](q * cos, k * cos, v, *more)
        return self.o(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(way), Mlp()

    def forward(self, x, cos, mask=None):
        x = x + self.attention(self.norm(x), cos, mask)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Each rank is given its own tokens, of as many ranks as there are."""

    def __init__(self, way, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers, self.way = nn.ModuleList(Block(way) for _ in range(layers)), way

    def forward(self, ids, mask=None):
        tokens = ids.shape[1]
        first = 0 if self.way == "alone" else dist.get_rank() * tokens
        x = self.embedding(ids)
        cos = torch.arange(first, first + tokens).mul(0.03).cos()[None, None, :, None].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, mask)
        return x


def tensor_parallel(is_sequence):
    """Every rank has some heads and some of the perceptron; with `is_sequence`, of norms tokens."""
    model, mesh = Model("alone"), init_device_mesh("cpu", (dist.get_world_size(),))
    inner, outer = ColwiseParallel(), RowwiseParallel()
    plan = {f"attention.{it}": inner for it in "qkv"} | {"attention.o": outer}
    plan |= {"mlp.gate": inner, "mlp.up": inner, "mlp.down": outer}
    if is_sequence:
        whole, rows = Replicate(), RowwiseParallel(output_layouts=Shard(1))
        given = PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(whole, None, None)
        )
        plan |= {"norm": SequenceParallel(), "norm2": SequenceParallel(), "attention": given}
        plan |= {"attention.o": rows, "mlp.down": rows}
        plan["mlp"] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=whole)
        embedding = RowwiseParallel(input_layouts=whole, output_layouts=Shard(1))
        parallelize_module(model, mesh, {"embedding": embedding})
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return model


class Count(TorchDispatchMode):
    """What is communicated, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(it.__module__.startswith("torch.distributed") for it in types):
            return NotImplemented
        space, _, name = func.name().partition("::")
        if "c10d" in space and not name.startswith(("wait_tensor", "_wrap")):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def mask_of(kind, tokens, batch):
    """Of all tokens: those before, of the same sequence; or those that are no padding."""
    place = torch.arange(tokens)
    mask = (place[:, None] >= place[None]).expand(batch, 1, tokens, tokens).clone()
    for row in range(batch):
        if kind == "packed":
            sequence = place // (tokens // 3 + 7 * row)
            mask[row] &= sequence[:, None] == sequence[None]
        else:
            mask[row, ..., : 40 * row + 5] = False
            mask[row] |= torch.eye(tokens, dtype=torch.bool)
    return mask


def seen_of(model, loss):
    """The loss, and the gradients as far as they are here."""
    grads = [it.grad for it in model.parameters()]
    return [
        loss.detach(),
        *((it.to_local() if hasattr(it, "to_local") else it).clone() for it in grads),
    ]


def train(model, batch=1, mask=None):
    """Three steps, of lengths that differ: losses and gradients, and what was communicated."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    seen, counts, rank = [], [], dist.get_rank() if model.way != "alone" else 0
    for step in range(3):
        chance, tokens = torch.Generator().manual_seed(10 * step + rank), 300 + 2 * step
        ids = torch.randint(0, 50, (batch, tokens), generator=chance)
        more = () if mask is None else (mask_of(mask, dist.get_world_size() * tokens, batch),)
        with Count() as count:
            loss = model(ids, *more).float().pow(2).mean()
            loss.backward()
        counts.append(count.names)
        seen += seen_of(model, loss)
        optimizer.step()
        optimizer.zero_grad()
    return seen, counts
