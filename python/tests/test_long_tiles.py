"""Perceptrons in tiles, forward passes that let go of what they save: same bits, lower peaks."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import WIDTH, Gated, Model, assert_same, gradients, ids  # noqa: E402
from long_meter import peaks  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._errors import GirihError  # noqa: E402
from girih._long import api, probe, tiles  # noqa: E402
from girih._long import layer as layer_module  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def reports(model):
    return girih.long_context_report(model)["layers"]


def check(model, *args, passes=4, tile=100, alpha=0, in_tiles=("mlp",), **kwargs):
    """Gradients are those of the model as it is, and these modules ran in tiles."""
    expected = [gradients(model, *args, seed=seed, **kwargs) for seed in range(passes)]
    girih.long_context(model, alpha=alpha, mlp_in_tiles=tile)
    for seed in range(passes):
        assert_same(expected[seed], gradients(model, *args, seed=seed, **kwargs))
        for layer in reports(model):
            assert layer["in_tiles"] == list(in_tiles), layer
    report = reports(model)
    api.remove(model)
    return report


class Feed(nn.Module):
    """Two products with an activation between, without biases, or with."""

    def __init__(self, bias=True, times=4):
        super().__init__()
        self.into = nn.Linear(WIDTH, times * WIDTH, bias=bias)
        self.out = nn.Linear(times * WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        return self.out(F.gelu(self.into(x)))


class Transposed(nn.Module):
    """As GPT-2 has it."""

    def __init__(self):
        super().__init__()
        self.into = nn.Parameter(torch.randn(WIDTH, 4 * WIDTH) / 6)
        self.out = nn.Parameter(torch.randn(4 * WIDTH, WIDTH) / 11)
        self.bias, self.bias2 = nn.Parameter(torch.ones(4 * WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        rows = F.gelu(torch.addmm(self.bias, x.view(-1, WIDTH), self.into))
        return torch.addmm(self.bias2, rows, self.out).view(x.shape)


class Adapted(nn.Module):
    """A frozen product with a trained one of low rank beside it."""

    def __init__(self, inner, outer):
        super().__init__()
        self.base = nn.Linear(inner, outer).requires_grad_(False)
        self.a, self.b = nn.Linear(inner, 4, bias=False), nn.Linear(4, outer, bias=False)

    def forward(self, x):
        return self.base(x) + 0.5 * self.b(self.a(x))


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, 3 * WIDTH)
        self.down = Adapted(3 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def with_mlp(make, layers=2, **kwargs):
    torch.manual_seed(0)
    model = Model(layers=layers, **kwargs)
    for layer in model.layers:
        layer.mlp = make()
    return model


@pytest.mark.parametrize("make", [Gated, Feed, lambda: Feed(bias=False), Transposed, Lora])
def test_gradients_are_equal_to_the_bit(make):
    model = with_mlp(make)
    report = check(model, ids())
    assert all(layer["reason"] == "" and layer["not_in_tiles"] == {} for layer in report)
    check(model, ids(tokens=300, batch=2))
    check(model, ids(tokens=257), tile=77, passes=1)
    check(model.bfloat16(), ids(tokens=777), tile=128)


def test_autocast_goes_the_same_way():
    for make in (Gated, Feed, Lora):
        check(with_mlp(make), ids(), context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))


def test_layers_of_which_something_is_kept_have_none():
    model = with_mlp(Gated, layers=3)
    expected = gradients(model, ids(tokens=520))
    girih.long_context(model, alpha=[0, "products", 0.5], mlp_in_tiles=64)
    for _ in range(3):
        assert_same(expected, gradients(model, ids(tokens=520)))
    assert [layer["in_tiles"] for layer in reports(model)] == [["mlp"], [], []]


def test_what_follows_a_perceptron_is_put_together_of_what_it_gave():
    class Between(nn.Module):
        def __init__(self, changes):
            super().__init__()
            self.norm, self.mlp, self.norm2 = nn.LayerNorm(WIDTH), Gated(), nn.LayerNorm(WIDTH)
            self.changes = changes

        def forward(self, x):
            y = self.mlp(self.norm(x))
            if self.changes:
                y = y.mul_(1.5)
            return x + torch.tanh(self.norm2(y))

    for changes in (False, True):
        torch.manual_seed(0)
        check(Model(layers=2, make=Between, changes=changes), ids(tokens=333), passes=5)


def test_frozen_weights_and_frozen_inputs():
    model = with_mlp(Gated)
    for layer in model.layers:
        layer.mlp.up.requires_grad_(False)
        layer.mlp.down.weight.requires_grad_(False)
    check(model, ids())
    model.embedding.requires_grad_(False)
    check(model, ids())
    for layer in model.layers:
        layer.mlp.requires_grad_(False)
    check(model, ids())
    # And nothing before the perceptron that wants a gradient.
    model.layers[0].requires_grad_(False)
    model.layers[0].norm2.bias.requires_grad_(True)
    check(model, ids())
    model.layers[0].requires_grad_(False)
    expected = gradients(model, ids())
    girih.long_context(model, alpha=0, mlp_in_tiles=100)
    assert_same(expected, gradients(model, ids()))


class Told(nn.Module):
    """A perceptron that does something besides."""

    def __init__(self, besides):
        super().__init__()
        self.mlp, self.besides = Gated(), besides
        self.register_buffer("count", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.besides(self, self.mlp(x))


def counts(module, y):
    module.count += 1
    return y + module.scale * 0


BESIDES = {
    "draws random numbers": lambda _, y: F.dropout(y, 0.5),
    "and not into a product": lambda module, y: y * module.scale,
    "changes what it has": counts,
    "something else than rows": lambda module, y: (y, module.scale),
    "depend on data": lambda module, y: y + module.scale.nonzero().sum() * 0,
}


@pytest.mark.parametrize("reason", BESIDES)
def test_what_cannot_run_in_tiles_runs_whole_and_says_why(reason):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(WIDTH), Told(BESIDES[reason])

        def forward(self, x):
            y = self.mlp(self.norm(x))
            return x + (y[0] if isinstance(y, tuple) else y)

    torch.manual_seed(0)
    model = Model(layers=2, make=Block)
    expected = [gradients(model, ids(), seed=seed) for seed in range(3)]
    girih.long_context(model, alpha=0, mlp_in_tiles=64)
    for seed in range(3):
        assert_same(expected[seed], gradients(model, ids(), seed=seed))
    for layer in reports(model):
        # What is within it can, where it is a perceptron itself.
        assert layer["in_tiles"] in ([], ["mlp.mlp"])
        assert reason in layer["not_in_tiles"]["mlp"]


def test_what_is_not_the_same_in_tiles_runs_whole():
    class Mixing(Gated):
        def forward(self, x):
            return super().forward(x + x.mean(1, keepdim=True))

    model = with_mlp(Mixing)
    report = check(model, ids(), in_tiles=())
    assert all("gives others" in layer["not_in_tiles"]["mlp"] for layer in report)


def test_gradients_that_are_others_are_seen_and_not_used(monkeypatch):
    right = tiles.Tiled.gradients

    def wrong(self, x, gradient):
        found = right(self, x, gradient)
        found[1] = found[1] + 1e-3
        return found

    model = with_mlp(Gated)
    expected = [gradients(model, ids(), seed=seed) for seed in range(3)]
    girih.long_context(model, alpha=0, mlp_in_tiles=64)
    monkeypatch.setattr(tiles.Tiled, "gradients", wrong)
    for seed in range(3):
        assert_same(expected[seed], gradients(model, ids(), seed=seed))
    for layer in reports(model):
        assert layer["in_tiles"] == []
        assert "gradients" in layer["not_in_tiles"]["mlp"]


def test_without_memory_to_compare_all_tokens_fewer_are(monkeypatch):
    seen = []

    def limited(method):
        def run(self, x, *more):
            seen.append(x.shape[1])
            if x.shape[1] > 200:
                raise torch.OutOfMemoryError("no memory")
            return method(self, x, *more)

        return run

    monkeypatch.setattr(tiles.Tiled, "reference", limited(tiles.Tiled.reference))
    check(with_mlp(Gated), ids(tokens=600))
    assert {600, 150} <= set(seen)


def test_of_long_sequences_a_quarter_is_compared(monkeypatch):
    seen, reference = [], tiles.Tiled.reference

    def watched(self, x, *more):
        seen.append(x.shape[1])
        return reference(self, x, *more)

    monkeypatch.setattr(tiles.Tiled, "reference", watched)
    monkeypatch.setattr(tiles, "COMPARED", 64)
    check(with_mlp(Gated), ids(tokens=600), passes=1)
    check(with_mlp(Gated), ids(tokens=200), passes=1)
    assert seen == [150] * 2 + [64] * 2


def test_hooks_within_would_run_for_every_tile():
    model = with_mlp(Gated)
    for layer in model.layers:
        layer.mlp.up.register_forward_hook(lambda *_: None)
    report = check(model, ids(), in_tiles=())
    assert all("hooks" in layer["not_in_tiles"]["mlp"] for layer in report)


def test_tiles_are_a_number_of_tokens():
    for wrong in (0.5, 0, -3):
        with pytest.raises(GirihError, match="mlp_in_tiles"):
            girih.long_context(Model(), alpha=0, mlp_in_tiles=wrong)
    for tokens, batch, expected in ((10_000, 1, 4_096), (10_000, 4, 1_024), (300, 1, 4_096)):
        assert tiles.tile_of(torch.empty(batch, tokens, 8), 1, 0) == expected


@pytest.mark.parametrize("tokens", [1, 255, 4_097, 10_000, 131_071, 1_048_576])
def test_tiles_are_of_about_as_many_tokens(tokens):
    plan, x = probe.Plan([], 0), torch.empty(1, tokens, 1)
    for most in (1, 100, 1_024, 4_096):
        ends = list(tiles.Tiled(None, None, 1, plan, most).tiles(x))
        assert [0, *(end for _, end in ends)] == [*(first for first, _ in ends), tokens]
        sizes = [end - first for first, end in ends]
        unit = 128 if most >= 1_024 else 1
        assert max(sizes) <= most + unit
        assert min(sizes) >= max(sizes) - 2 * unit
        assert all(size % unit == 0 for size in sizes[:-1])


def test_what_is_no_longer_than_a_tile_runs_as_it_is():
    model = with_mlp(Gated)
    girih.long_context(model, alpha=0, mlp_in_tiles=True)
    gradients(model, ids())
    assert all(layer["in_tiles"] == [] for layer in reports(model))


def test_tiles_lower_the_peak_of_both_passes():
    wide = 16
    model, data = with_mlp(lambda: Feed(times=wide), layers=1), ids(tokens=4096)
    row = 4096 * WIDTH * 4
    found = {}
    for tile in (False, 256):
        girih.long_context(model, alpha=0, mlp_in_tiles=tile)
        for _ in range(2):
            gradients(model, data)
        found[tile] = [most / row for most in peaks(model, data)]
    # In forward the activation and what goes into it.
    assert found[256][0] < found[False][0] - wide
    # In backward these and their gradients, of which one is there at a time.
    assert found[False][1] > 3 * wide
    assert found[256][1] < found[False][1] - 1.8 * wide


def test_what_a_layer_saves_is_let_go_of_while_it_runs():
    model, data = with_mlp(Gated, layers=1), ids(tokens=4096)
    held, _ = peaks(model, data)
    for alpha, most in ((0, 0.75), ("products", 0.85)):
        girih.long_context(model, alpha=alpha)
        found = [peaks(model, data)[0] / held for _ in range(5)]
        assert reports(model)[0]["checks"] == 3
        # Of passes that are compared, too, where no products are kept to be compared.
        assert all(it < most for it in (found if alpha == 0 else found[2::2])), found


def test_a_known_layer_that_does_what_it_did_not_runs_again_and_is_held():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp, self.calls = nn.LayerNorm(WIDTH), Gated(), 0

        def forward(self, x):
            y = self.mlp(self.norm(x))
            if self.draws:
                y = y * torch.rand(y.shape, generator=torch.Generator().manual_seed(7))
            return x + torch.sin(self.mlp(torch.tanh(y)))

    torch.manual_seed(0)
    Late.draws = False
    model = Model(layers=2, make=Late)
    expected = []
    for seed in range(6):
        Late.draws = seed >= 2
        expected.append(gradients(model, ids(), seed=seed))
    girih.long_context(model, alpha=0)
    for seed in range(6):
        Late.draws = seed >= 2
        assert_same(expected[seed], gradients(model, ids(), seed=seed))
    assert all("draws from a generator" in layer["reason"] for layer in reports(model))


def test_a_layer_that_gives_something_else_once_more_runs_again_and_is_held():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(WIDTH), Gated()

        def forward(self, x):
            y = self.mlp(self.norm(x))
            if self.is_noisy:
                # No operator tells of it, and no attribute leads to the generator.
                y = y * torch.from_numpy(chance.random(y.shape, dtype="float32"))
            return x + torch.sin(y)

    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    chance = numpy.random.default_rng(0)
    for noisy_from in (0, 1, 3):
        torch.manual_seed(0)
        model = Model(layers=2, make=Noisy)
        girih.long_context(model, alpha=0)
        for seed in range(5):
            Noisy.is_noisy = seed >= noisy_from
            gradients(model, ids(), seed=seed)
        # The fourth pass is compared.
        assert all("a second time" in layer["reason"] for layer in reports(model))


def test_without_memory_to_compare_what_was_let_go_of_it_is_held(monkeypatch):
    model = with_mlp(Gated)
    expected = [gradients(model, ids(), seed=seed) for seed in range(3)]
    girih.long_context(model, alpha=0)
    learn, fails = layer_module.learn, [True] * 4

    def short(call, first):
        if fails:
            fails.pop()
            raise torch.OutOfMemoryError("no memory")
        return learn(call, first)

    monkeypatch.setattr(layer_module, "learn", short)
    for seed in range(3):
        assert_same(expected[seed], gradients(model, ids(), seed=seed))
    assert not fails
    assert all(layer["split"] > 0 for layer in reports(model))


def llama(**more):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    settings = transformers.LlamaConfig(**sizes, **heads, **more)
    settings._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(settings).train()


def of_hugging_face(model, find, *, passes=4, **kwargs):
    """Losses and gradients of a model with tiles, and those of the model as it is."""
    data = ids(tokens=300, batch=2)

    def run(seed):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=data, labels=data, use_cache=False, **kwargs).loss
        loss.backward()
        return [loss.detach(), *(it.grad for it in model.parameters() if it.grad is not None)]

    expected = [run(seed) for seed in range(passes)]
    for alpha, tile in ((0, 100), (0, False), ("products", False), (0.5, False)):
        girih.long_context(model, alpha=alpha, mlp_in_tiles=tile)
        for seed in range(passes):
            assert_same(expected[seed], run(seed))
        for layer in reports(model):
            assert layer["in_tiles"] == (find if tile else [])
            assert layer["split"] == passes
    api.remove(model)


def test_padded_sequences_of_hugging_face():
    padding = torch.ones(2, 300, dtype=torch.long)
    padding[0, :41] = 0
    of_hugging_face(llama(), ["mlp"], attention_mask=padding)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
def test_lora_of_peft(targets):
    model = llama()
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(r=4, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, settings)
    for name, parameter in model.named_parameters():
        # As they are made nothing would depend on the first ones.
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    of_hugging_face(model, ["mlp"])


def test_lora_whose_perceptrons_draw_random_numbers_is_split_and_not_in_tiles():
    model = llama()
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(
        r=4, target_modules="all-linear", lora_dropout=0.1, task_type="CAUSAL_LM"
    )
    of_hugging_face(peft.get_peft_model(model, settings), [])
