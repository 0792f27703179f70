"""Layers that are split by tokens train as they do whole: gradients are compared to the bit."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import (  # noqa: E402
    WIDTH,
    Attention,
    Chunked,
    Gated,
    Model,
    assert_same,
    check,
    gradients,
    ids,
)
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import api, trace  # noqa: E402
from girih._long.call import Call  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_gradients_are_equal_to_the_bit_whatever_part_is_kept():
    torch.manual_seed(0)
    model = Model()
    check(model, ids())
    check(model, ids(tokens=300, batch=2))
    check(model, ids(tokens=5))
    check(model.bfloat16(), ids(tokens=777))


def test_layers_may_each_have_their_part():
    model = Model(layers=4)
    expected = gradients(model, ids(tokens=520))
    girih.long_context(model, alpha=[0, 0.25, 1, 0.5])
    assert_same(expected, gradients(model, ids(tokens=520)))
    report = girih.long_context_report(model)["layers"]
    assert [layer["kept"] for layer in report] == [0, 128, 0, 256]
    assert [layer["split"] for layer in report] == [1, 1, 0, 1]


def test_what_is_kept_is_the_input_and_attention_and_a_part():
    model, kept = Model(layers=2), []

    def count(tensor):
        kept.append(tensor)
        return tensor

    def bytes_kept(alpha):
        kept.clear()
        girih.long_context(model, alpha=alpha)
        x = model.embedding(ids(tokens=512)).detach().requires_grad_()
        cos = torch.ones(1, 512, 1)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model.layers[1](x, cos)
        weights = {it.data_ptr() for it in model.parameters()}
        return sum(
            {it.data_ptr(): it.nbytes for it in kept if it.data_ptr() not in weights}.values()
        )

    row, everything = 512 * WIDTH * 4, bytes_kept(1)
    # Input, attention's output with its log-sum-exp, and the statistics and cosines that are small.
    assert bytes_kept(0) < 3 * row
    assert everything > 15 * row
    half = bytes_kept(0.5)
    assert everything / 2 - row < half < everything / 2 + 3 * row


def test_products_that_are_kept_are_not_computed_again():
    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.made = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.name() in ("aten::mm", "aten::addmm", "aten::bmm"):
                self.made.append(func.name())
            return func(*args, **(kwargs or {}))

    model, counts, kept = Model(layers=2), {}, {}
    for alpha in (None, "products", 0):
        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        for turn in range(3):
            loss = model(ids(tokens=600)).pow(2).mean()
            with Count() as count:
                loss.backward()
            counts[alpha, turn] = len(count.made)
        if alpha is not None:
            kept[alpha] = girih.long_context_report(model)["layers"][1]["bytes_kept"]
    assert {counts[None, turn] for turn in range(3)} == {
        counts["products", turn] for turn in range(3)
    }
    assert counts[0, 2] > counts[None, 2]
    saved = girih.long_context_report(model)["layers"][1]["bytes_saved"]
    assert kept[0] < kept["products"] < 0.7 * saved


def test_a_product_that_no_replay_had_come_to_is_computed():
    model = Model()
    for layer in model.layers:
        layer.mlp.requires_grad_(False)
    model.layers[0].attention.requires_grad_(False)
    girih.long_context(model, alpha="products")
    gradients(model, ids(tokens=600))
    model.requires_grad_(True)
    found = gradients(model, ids(tokens=600))
    api.remove(model)
    assert_same(gradients(model, ids(tokens=600)), found)


def test_random_numbers_are_those_of_the_forward_pass_row_by_row():
    model = Model(dropout=0.3)
    report = check(model, ids(tokens=333, batch=2), alphas=(0, "products", 0.5))
    assert all(layer["kept_whole"] == [] and layer["reason"] == "" for layer in report)
    # And those after it are what they would have been.
    girih.long_context(model, alpha=0)
    gradients(model, ids(), seed=5)
    after = torch.rand(3)
    api.remove(model)
    gradients(model, ids(), seed=5)
    assert torch.equal(after, torch.rand(3))


def test_masks_of_padded_sequences():
    mask = torch.ones(2, 1, 300, 300, dtype=torch.bool).tril()
    mask[0, :, :, :17] = False
    mask[0, :, :17, :17] |= torch.eye(17, dtype=torch.bool)
    report = check(Model(), ids(tokens=300, batch=2), mask=mask, alphas=(0, "products", 0.5))
    assert all(layer["kept_whole"] == [] and layer["reason"] == "" for layer in report)


def test_attention_that_is_written_out_is_kept_whole():
    report = check(Model(eager=True), ids(tokens=300, batch=2), alphas=(0, "products", 0.5))
    assert {name for layer in report for name in layer["kept_whole"]} == {"attention"}
    assert all(layer["bytes_kept"] < layer["bytes_saved"] for layer in report)


@pytest.mark.parametrize("alpha", [0, 0.5])
def test_experts_run_again_over_all_tokens_or_not_at_all(alpha):
    model = Model(experts=True)
    # What goes where changes from pass to pass, and with it how much is saved.
    check(model, ids(tokens=300), alphas=(alpha,))
    girih.long_context(model, alpha=alpha)
    whole = Model(experts=True)
    whole.load_state_dict(model.state_dict())
    both = [(it, torch.optim.SGD(it.parameters(), 0.5)) for it in (whole, model)]
    for step in range(12):
        data = torch.randint(0, 50, (2, 290 + step), generator=torch.Generator().manual_seed(step))
        expected, found = [gradients(it, data) for it, _ in both]
        assert_same(expected, found)
        for _, optimizer in both:
            optimizer.step()
    report = girih.long_context_report(model)["layers"]
    assert all(layer["kept_whole"] == (["mlp.experts"] if alpha else []) for layer in report)
    # The first pass of the first layer found that out, for all.
    assert [layer["split"] for layer in report] == ([11, 12, 12] if alpha else [12, 12, 12])
    # Each pass has another length: the first eight are compared, after that none before the 16th.
    assert [layer["checks"] for layer in report[1:]] == [8, 8]


def test_modules_that_are_kept_whole_may_be_within_others():
    model = Model()
    girih.long_context(model, alpha=0)
    api.of(model).layers[0].known.opaque.update({"mlp.gate", "attention", "attention.out"})
    whole = Model()
    whole.load_state_dict(model.state_dict())
    for tokens in (300, 301):
        assert_same(gradients(whole, ids(tokens)), gradients(model, ids(tokens)))
    assert all(layer["split"] == 2 for layer in girih.long_context_report(model)["layers"])


class Mixing(nn.Module):
    """Mixes tokens without attention, at first with a weight of zero."""

    def __init__(self, *, learns=True):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.zeros(WIDTH), requires_grad=learns)

    def forward(self, x):
        x = x + self.gate * self.norm(x).cumsum(1)
        return x + torch.tanh(self.linear(x))


def test_tokens_that_are_mixed_by_a_weight_of_zero_are_seen_through():
    model, whole = Model(make=Mixing), Model(make=Mixing)
    whole.load_state_dict(model.state_dict())
    girih.long_context(model, alpha=0.5)
    both = [(it, torch.optim.SGD(it.parameters(), 1e-3)) for it in (whole, model)]
    for _ in range(9):
        assert_same(*[gradients(it, ids()) for it, _ in both])
        for _, optimizer in both:
            optimizer.step()
    assert "token by token" in girih.long_context_report(model)["layers"][1]["reason"]


def test_what_was_equal_by_chance_is_looked_at_again():
    # The weight is zero and nothing of the mixing is saved: no value shows it in the first pass.
    model, whole = Model(make=Mixing, learns=False), Model(make=Mixing, learns=False)
    whole.load_state_dict(model.state_dict())
    girih.long_context(model, alpha=0.5)
    for weight in (0, 0.1, 0.2):
        for it in (*whole.layers, *model.layers):
            it.gate.data.fill_(weight)
        assert_same(gradients(whole, ids()), gradients(model, ids()))
    assert "token by token" in girih.long_context_report(model)["layers"][0]["reason"]


def test_autocast():
    def context():
        return torch.autocast("cpu", dtype=torch.bfloat16)

    check(Model(), ids(tokens=333, batch=2), context=context, alphas=(0, "products", 0.5))


def test_under_the_hooks_of_others():
    model = Model()
    check(model, ids(), context=torch.autograd.graph.save_on_cpu, alphas=(0, "products", 0.5))


def test_under_checkpoints():
    from torch.utils.checkpoint import checkpoint

    model = Model()
    cos = torch.ones(1, 300, 1)

    def run(x, *, use_reentrant):
        for layer in model.layers:
            x = checkpoint(layer, x, cos, use_reentrant=use_reentrant)
        return x

    for use_reentrant in (False, True):
        results = []
        for alpha in (None, 0, 0.5):
            if alpha is not None:
                girih.long_context(model, alpha=alpha)
            model.zero_grad()
            x = model.embedding(ids(tokens=300)).detach().requires_grad_()
            run(x, use_reentrant=use_reentrant).pow(2).mean().backward()
            results.append([x.grad, *(it.grad for it in model.layers.parameters())])
        api.remove(model)
        assert_same(results[0], results[1])
        assert_same(results[0], results[2])


def test_backward_twice_and_through_backward():
    model = Model(layers=2)
    results = []
    for alpha in (None, 0, 0.5):
        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        x = model.embedding(ids()).detach().requires_grad_()
        cos = torch.ones(1, x.shape[1], 1)
        y = torch.tanh(model.layers[0].norm(model.layers[1].mlp(x)))
        y = model.layers[0](y, cos)
        first = torch.autograd.grad(y.pow(2).mean(), x, retain_graph=True)
        second = torch.autograd.grad(y.pow(2).mean(), x)
        results.append([*first, *second])
        z = model.layers[0].mlp(x).pow(2).mean()
        (slope,) = torch.autograd.grad(z, x, create_graph=True)
        results[-1] += torch.autograd.grad(slope.pow(2).sum(), x)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_what_was_put_together_goes_as_it_is_used():
    model = Model()
    girih.long_context(model, alpha=0)
    loss = model(ids()).pow(2).mean()
    loss.backward(retain_graph=True)
    calls = [it for it in gc.get_objects() if isinstance(it, Call)]
    assert len(calls) == 3
    assert all(call.replays == 1 and call.put_together == {} for call in calls)
    loss.backward()
    assert all(call.replays == 2 and call.put_together == {} for call in calls)


def test_views_of_one_tensor_are_views_of_one_again():
    model = Model(make=Chunked)
    check(model, ids(batch=2), alphas=(0, "products", 0.5))
    girih.long_context(model, alpha=0)
    loss = model(ids()).pow(2).mean()
    calls = [it for it in gc.get_objects() if isinstance(it, Call)]
    assert len(calls) == 3
    for call in calls:
        elements = [end - at for at, end in call.extents.values()]
        assert max(elements) >= 301 * 2 * WIDTH
        assert sum(elements) <= 301 * 6 * WIDTH
    del loss


def test_two_graphs_and_one_that_is_never_run_backward():
    model = Model()
    expected = [gradients(model, ids(), seed=seed) for seed in (1, 2)]
    girih.long_context(model, alpha=0.25)
    losses = []
    for _ in range(3):
        losses.append(model(ids()).pow(2).mean())
    dropped = losses.pop(1)
    api.remove(model)
    for loss in reversed(losses):
        model.zero_grad()
        loss.backward()
        assert_same(expected[0][1:], [it.grad for it in model.parameters()])
    del dropped


@pytest.mark.parametrize("alpha", [0, 0.25])
def test_nothing_lives_on_after_the_graph(alpha):
    model = Model(dropout=0.1)
    girih.long_context(model, alpha=alpha)
    watched = []

    def watch(tensor):
        kept = tensor.detach()
        watched.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
        kept = model(ids(tokens=600)).pow(2).mean()
        lost = model(ids(tokens=600)).pow(2).mean()
    kept.backward()
    del kept, lost
    gc.collect()
    assert len(watched) > 30
    assert [it().shape for it in watched if it() is not None] == []


def test_short_passes_and_passes_without_gradients_run_as_they_are():
    model = Model()
    girih.long_context(model, alpha=0, least_tokens=300)
    gradients(model, ids(tokens=299))
    with torch.no_grad():
        model(ids(tokens=400))
    assert girih.long_context_report(model)["layers"][0]["calls"] == 0
    gradients(model, ids(tokens=300))
    assert girih.long_context_report(model)["layers"][0]["calls"] == 1


def test_a_model_of_which_only_a_part_learns():
    model = Model()
    for parameter in [*model.embedding.parameters(), *model.layers[0].parameters()]:
        parameter.requires_grad_(False)
    for layer in model.layers:
        layer.mlp.gate.weight.requires_grad_(False)
    report = check(model, ids(), alphas=(0, "products", 0.5), splits=False)
    assert [layer["split"] for layer in report] == [0, 3, 3]


# ---- programs that nobody wrote


class Random(nn.Module):
    """A layer of operators that a seed chooses: most of them token by token."""

    def __init__(self, seed):
        super().__init__()
        self.chosen = torch.randint(
            0, 12, (8,), generator=torch.Generator().manual_seed(seed)
        ).tolist()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.attention = Gated(), Attention()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        for index in self.chosen:
            x = self.one(index, x)
        return x

    def one(self, index, x):  # noqa: PLR0911
        match index:
            case 0:
                return x + self.linear(x)
            case 1:
                return self.norm(x)
            case 2:
                return x + torch.sin(x) * self.scale
            case 3:
                return x + self.wide(x)
            case 4:
                return x + self.attention(x, torch.ones(1, x.shape[1], 1), None)
            case 5:
                return F.dropout(x, 0.2)
            case 6:
                return x + 0.1 * x.cumsum(1) / x.shape[1]
            case 7:
                return x.reshape(-1, WIDTH).tanh().view_as(x)
            case 8:
                return x.transpose(0, 1).contiguous().sigmoid().transpose(0, 1)
            case 9:
                return x * torch.rand_like(x)
            case 10:
                return x + x.mean(1, keepdim=True).exp()
            case _:
                a, b = x.unflatten(-1, (2, -1)).unbind(-2)
                return torch.cat([a * b, F.relu(b)], -1)


@pytest.mark.parametrize("seed", range(40))
def test_any_program(seed, monkeypatch):
    if seed % 2:
        # Replays of as little as can be.
        monkeypatch.setattr(trace, "GROUP_LEAST", 0.0)
    torch.manual_seed(seed)
    model = Model(layers=2, make=lambda: Random(seed))
    check(
        model,
        ids(tokens=260 + 3 * seed, batch=1 + seed % 3),
        alphas=(0, 0.4, "products"),
        passes=3,
        splits=False,
    )
