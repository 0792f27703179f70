"""Layers of several kinds, and what holds them against themselves split by tokens."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

import girih
from girih._long import api

WIDTH, HEADS = 32, 4


class Attention(nn.Module):
    def __init__(self, *, eager=False):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.eager = eager

    def forward(self, x, cos, mask):
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(batch, tokens, 3 * HEADS, -1).transpose(1, 2).chunk(3, dim=1)
        q, k, v = parts[0] * cos, parts[1] * cos, parts[2]
        if self.eager:
            weights = (q @ k.transpose(-1, -2)).softmax(-1)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each token goes to one of three: how many go where depends on the data."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = Routed()

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        return self.experts(x, scores)


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x, scores):
        flat, chosen = x.flatten(0, 1), scores.flatten(0, 1).argmax(-1)
        y = torch.zeros_like(flat)
        for index, expert in enumerate(self.each):
            (where,) = torch.where(chosen == index)
            weight = scores.flatten(0, 1)[where, index, None]
            y = y.index_add(0, where, (torch.tanh(expert(flat[where])) * weight).to(y.dtype))
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, *, eager=False, dropout=0.0, experts=False):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(eager=eager)
        self.mlp = Experts() if experts else Gated()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, cos, mask=None):
        x = x + self.dropout(self.attention(self.norm(x), cos, mask))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Model(nn.Module):
    def __init__(self, layers=3, make=Block, **kwargs):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList([make(**kwargs) for _ in range(layers)])

    def forward(self, ids, mask=None):
        x = self.embedding(ids)
        cos = torch.linspace(0, 9, ids.shape[1]).cos()[None, :, None].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, mask) if isinstance(layer, Block) else layer(x)
        return x


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        a, b, c = self.linear(x).chunk(3, dim=-1)
        return torch.sin(a) * b * torch.tanh(c)


def ids(tokens=301, batch=1):
    return torch.randint(0, 50, (batch, tokens), generator=torch.Generator().manual_seed(3))


def gradients(model, *args, seed=1, context=contextlib.nullcontext, **kwargs):
    """Loss and gradients of one pass."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    with context():
        loss = model(*args, **kwargs).float().pow(2).mean()
    loss.backward()
    return [loss.detach(), *(it.grad for it in model.parameters() if it.grad is not None)]


def assert_same(expected, found):
    assert len(expected) == len(found)
    # Where one is not a number the other is not: bits, not values.
    bits = [[it.nan_to_num(nan=1234.5) for it in them] for them in (expected, found)]
    assert all(torch.equal(a, b) for a, b in zip(*bits, strict=True))


def check(
    model, *args, alphas=(0, "products", 1 / 8, 1 / 4, 1 / 2, 1), passes=3, splits=True, **kwargs
):
    """Gradients under each alpha are those of the model as it is. Gives the last report."""
    expected = [gradients(model, *args, seed=seed, **kwargs) for seed in range(passes)]
    for alpha in alphas:
        girih.long_context(model, alpha=alpha)
        for seed in range(passes):
            assert_same(expected[seed], gradients(model, *args, seed=seed, **kwargs))
        report = girih.long_context_report(model)["layers"]
        if alpha != 1 and splits:
            part = 0 if alpha == "products" else alpha
            assert all(layer["kept"] <= part * layer["tokens"] for layer in report)
    api.remove(model)
    assert_same(expected[0], gradients(model, *args, seed=0, **kwargs))
    return report
