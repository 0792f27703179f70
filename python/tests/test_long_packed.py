"""Several sequences in one, and padded ones: by a mask, by positions that begin again, by ends."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import HEADS, WIDTH, Gated, assert_same, check, gradients, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ENDS = [0, 37, 190, 191, 301]


@torch.library.custom_op("flash_attn_of_tests::varlen_forward", mutates_args=())
def varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As flash attention has it: `[tokens, heads, width]`, and where sequences end."""
    outputs, sums = [], []
    for begin, end in itertools.pairwise(ends.tolist()):
        parts = (it[begin:end].transpose(0, 1)[None] for it in (q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *parts, is_causal=True
        )
        outputs.append(out[0].transpose(0, 1))
        sums.append(lse[0])
    return torch.cat(outputs), torch.cat(sums, 1)


@torch.library.custom_op("flash_attn_of_tests::varlen_backward", mutates_args=())
def varlen_backward(  # noqa: PLR0917 - operators have no other kind
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    ends: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequence by sequence."""
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    gave = []
    for begin, end in itertools.pairwise(ends.tolist()):
        parts = (it[begin:end].transpose(0, 1)[None] for it in (gradient, q, k, v, out))
        one = back(*parts, lse[None, :, begin:end].contiguous(), 0.0, True)
        gave.append([it[0].transpose(0, 1) for it in one])
    dq, dk, dv = (torch.cat(parts) for parts in zip(*gave, strict=True))
    return dq, dk, dv


def remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output, inputs[3])


def back(ctx, gradient, _lse):
    return *varlen_backward(gradient, *ctx.saved_tensors), None


varlen.register_autograd(back, setup_context=remember)


class Varlen(nn.Module):
    """Attention of sequences of any lengths, without a mask."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Gated()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, turn, ends):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        q, k = q * turn, k * turn
        y, _ = varlen(q[0], k[0], v[0], ends)
        x = x + self.out(y.flatten(1)[None])
        return x + self.mlp(x)


class Packed(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList([Varlen() for _ in range(layers)])

    def forward(self, data, ends):
        places = torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(ends.tolist())])
        turn = (places * 0.1).cos()[None, :, None, None]
        x = self.embedding(data)
        for layer in self.layers:
            x = layer(x, turn, ends)
        return x


@pytest.mark.parametrize("ends", [ENDS, [0, 301], [0, 128, 256, 301]])
def test_sequences_of_any_lengths_in_one(ends):
    model, data = Packed(), ids(tokens=301)
    report = check(model, data, torch.tensor(ends))
    assert all(layer["kept_whole"] == [] and layer["reason"] == "" for layer in report)


def test_the_sequences_of_each_pass_are_others():
    model, draw = Packed(), torch.Generator().manual_seed(0)
    steps = []
    for _ in range(10):
        tokens = int(torch.randint(260, 420, (), generator=draw))
        cuts = torch.randint(1, tokens, (3,), generator=draw).unique()
        ends = torch.cat([torch.tensor([0]), cuts, torch.tensor([tokens])])
        steps.append((ids(tokens=tokens), ends))
    expected = [gradients(model, *step) for step in steps]
    for alpha in (0, "products", 0.5):
        girih.long_context(model, alpha=alpha)
        for step, known in zip(steps, expected, strict=True):
            assert_same(known, gradients(model, *step))
        report = girih.long_context_report(model)["layers"]
        assert all(layer["split"] == 10 for layer in report)


def llama(transformers, implementation):
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        intermediate_size=88,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).train()


class Output(nn.Module):
    """A model of Hugging Face, as one that gives a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, data, **kwargs):
        return self.model(input_ids=data, use_cache=False, **kwargs).logits


def kinds(batch, tokens):
    """What a program gives Hugging Face's models beside the tokens."""
    begins = torch.tensor(ENDS[:-1])
    places = torch.arange(tokens)
    begin = begins[torch.searchsorted(begins, places, right=True) - 1]
    padding = torch.ones(batch, tokens, dtype=torch.long)
    padding[0, :41] = 0
    padding[-1, -23:] = 0
    return {
        "positions": {"position_ids": (places - begin).expand(batch, tokens)},
        "padding": {"attention_mask": padding},
    }


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["positions", "padding"])
def test_packed_and_padded_sequences_of_hugging_face(kind, implementation):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    batch = 1 if kind == "positions" else 2
    run = Output(llama(transformers, implementation))
    data, more = ids(tokens=301, batch=batch), kinds(batch, 301)[kind]
    expected = gradients(run, data, **more)
    if kind == "positions":
        # Sequences do not see each other: the first token of one may be any.
        other = data.clone()
        other[0, ENDS[1]] = (other[0, ENDS[1]] + 1) % 50
        with torch.no_grad():
            before, after = run(data, **more), run(other, **more)
        assert torch.equal(before[0, : ENDS[1]], after[0, : ENDS[1]])
        assert torch.equal(before[0, ENDS[2] :], after[0, ENDS[2] :])
    for alpha in (0, "products", 0.5):
        girih.long_context(run.model, alpha=alpha)
        for _ in range(3):
            assert_same(expected, gradients(run, data, **more))
        report = girih.long_context_report(run.model)["layers"]
        assert all(layer["split"] > 0 for layer in report), report


def test_a_mask_that_is_one_dimension_more_is_no_mask_of_tokens():
    """A bias of attention that is learnt, for all tokens by all tokens."""

    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(HEADS, 300, 300))
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = Gated()

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[None])
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.mlp(x)

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, WIDTH)
            self.layers = nn.ModuleList([Biased() for _ in range(2)])

        def forward(self, data):
            x = self.embedding(data)
            for layer in self.layers:
                x = layer(x)
            return x

    check(Layers(), ids(tokens=300, batch=2), splits=False)
