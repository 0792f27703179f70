"""Weights that are others in the forward pass than in the backward pass.

What runs again runs with those of the forward pass, as what autograd saved is of those; where they
are no more there, it is an error, and never another gradient.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import WIDTH, Gated, Model, assert_same, ids  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call  # noqa: E402

import girih  # noqa: E402
from girih._long import api, notes  # noqa: E402
from girih._long.notes import ReplayError  # noqa: E402
from girih._long.weights import Weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = {
    "nothing": {"alpha": 0},
    "products": {"alpha": "products"},
    "part": {"alpha": 0.25},
    "tiles": {"alpha": 0, "mlp_in_tiles": 64},
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def _products_are_kept(monkeypatch):
    monkeypatch.setattr(notes, "DEPTH", WIDTH)


def made(make=Model, **kwargs):
    torch.manual_seed(0)
    return make(**kwargs)


def split(model, way):
    girih.long_context(model, **WAYS[way])


def check(way, train, make=Model, passes=3):
    """What `train` gives is the same, in passes that are compared and in others."""
    model, whole = made(make), made(make)
    split(model, way)
    for _ in range(passes):
        assert_same(train(whole), train(model))
    layers = girih.long_context_report(model)["layers"]
    assert all(layer["split"] == layer["calls"] >= passes for layer in layers)
    return layers


def loss_of(model, *others):
    run = model if not others else lambda data: functional_call(model, others, (data,))
    return run(ids(batch=2)).pow(2).mean()


def gradients(model):
    return [it.grad.clone() for it in model.parameters() if it.grad is not None]


def larger(model):
    """Parameters, with the names of those of a model, that are others."""
    return {name: (1.5 * it.detach()).requires_grad_() for name, it in model.named_parameters()}


@every_way
def test_parameters_of_one_pass(way):
    def train(model):
        theirs = larger(model)
        loss_of(model, theirs).backward()
        return [it.grad for it in theirs.values()]

    layers = check(way, train)
    assert [layer["in_tiles"] for layer in layers] == [["mlp"] if way == "tiles" else []] * 3


@every_way
def test_parameters_that_a_network_makes(way):
    def train(model):
        own = {name: it.detach().clone().requires_grad_() for name, it in model.named_parameters()}
        scale = torch.tensor(1.3, requires_grad=True)
        loss_of(model, {name: it * scale for name, it in own.items()}).backward()
        return [scale.grad, *(it.grad for it in own.values())]

    check(way, train)


@every_way
def test_learning_to_learn(way):
    """A step by gradients that are derived again, and a loss by what that gives."""

    def train(model):
        own = larger(model)
        grads = torch.autograd.grad(loss_of(model, own), list(own.values()), create_graph=True)
        after = {name: it - 0.1 * grad for (name, it), grad in zip(own.items(), grads, strict=True)}
        return torch.autograd.grad(loss_of(model, after), list(own.values()))

    # The kernel of attention has no second derivative.
    model, whole = made(eager=True), made(eager=True)
    split(model, way)
    for _ in range(3):
        # What is derived again comes in another order from tiles.
        for one, other in zip(train(whole), train(model), strict=True):
            torch.testing.assert_close(one, other)


class Buffered(nn.Module):
    """A perceptron with a buffer that autograd saves nothing of."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Gated()
        self.mlp.register_buffer("shift", torch.ones(WIDTH))
        self.own = self.mlp.forward
        self.mlp.forward = lambda x: self.own(x + self.mlp.shift)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


@every_way
def test_buffers_of_one_pass(way):
    def train(model):
        model.zero_grad()
        shifts = {name: 3 * it for name, it in model.named_buffers()}
        loss_of(model, shifts).backward()
        return gradients(model)

    check(way, train, lambda: Model(make=Buffered))


class Loose(Gated):
    """It learns what is no parameter of any module: shardings may have theirs elsewhere."""

    def __init__(self):
        super().__init__()
        self.scales = [torch.ones(WIDTH, requires_grad=True)]

    def forward(self, x):
        return super().forward(x * self.scales[0])


@every_way
def test_what_is_learnt_and_no_parameter(way):
    def loose():
        model = Model()
        for layer in model.layers:
            layer.mlp = Loose()
        return model

    def train(model):
        model.zero_grad()
        for layer in model.layers:
            layer.mlp.scales[0].grad = None
        loss_of(model).backward()
        return gradients(model) + [layer.mlp.scales[0].grad for layer in model.layers]

    layers = check(way, train, loose)
    if way == "tiles":
        why = "it learns what is no parameter of it"
        assert [layer["not_in_tiles"] for layer in layers] == [{"mlp": why}] * 3


@every_way
@pytest.mark.parametrize("is_none_left", [False, True])
def test_a_parameter_that_is_there_for_the_forward_pass_alone(way, is_none_left):
    def train(model):
        model.zero_grad()
        perceptrons = [layer.mlp for layer in model.layers]
        before = [(it.down.weight, it.down.bias) for it in perceptrons]
        ours = []
        for it in perceptrons:
            it.down.weight = nn.Parameter(2 * it.down.weight.detach())
            ours.append(it.down.weight)
        loss = loss_of(model)
        for it, (weight, bias) in zip(perceptrons, before, strict=True):
            it.down.weight = None if is_none_left else weight
            it.down.bias = None if is_none_left else bias
        now = [dict(it.down._parameters) for it in perceptrons]
        loss.backward()
        # And afterwards modules have what they had before.
        for it, there in zip(perceptrons, now, strict=True):
            assert list(it.down._parameters.items()) == list(there.items())
        for it, (weight, bias) in zip(perceptrons, before, strict=True):
            it.down.weight, it.down.bias = weight, bias
        return [it.grad for it in ours] + gradients(model)

    check(way, train)


@every_way
def test_what_is_frozen_before_the_backward_pass(way):
    def train(model):
        model.zero_grad()
        loss = loss_of(model)
        frozen = [*model.layers[0].parameters(), *model.layers[1].mlp.parameters()]
        for it in frozen:
            it.requires_grad_(False)
        loss.backward()
        assert not any(it.requires_grad for it in frozen)
        for it in frozen:
            it.requires_grad_(True)
        return gradients(model)

    check(way, train)


@every_way
def test_what_was_frozen_in_the_forward_pass(way):
    def train(model):
        model.zero_grad()
        ours = [*model.layers[1].parameters()]
        for it in ours:
            it.requires_grad_(False)
        loss = loss_of(model)
        for it in ours:
            it.requires_grad_(True)
        loss.backward()
        return gradients(model)

    check(way, train)


@every_way
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_with_other_values_is_an_error_and_not_wrong(way, name):
    model = made()
    split(model, way)
    for _ in range(3):
        parameter = getattr(model.layers[1].mlp.up, name)
        before = parameter.data
        loss = loss_of(model)
        parameter.data = before * 0.5
        # Products that were kept are not computed again, and so it is not looked at their weights.
        if way != "products":
            said = rf"up\.{name} of a .* was changed between its forward and its backward"
            with pytest.raises(ReplayError, match=said):
                loss.backward()
        parameter.data = before
    model.zero_grad()
    loss_of(model).backward()
    found = gradients(model)
    api.remove(model)
    model.zero_grad()
    loss_of(model).backward()
    assert_same(gradients(model), found)


@every_way
def test_where_the_memory_of_another_was_is_not_what_was_there(way):
    """What is gone leaves its place to the next: by its place alone it would be the same."""
    model = made()
    split(model, way)
    if way == "products":
        return
    for _ in range(3):
        bias = model.layers[1].mlp.up.bias
        values = bias.detach().clone()
        loss = loss_of(model)
        for _ in range(50):
            bias.data = torch.empty(0)
            bias.data = torch.zeros_like(values)
        with pytest.raises(ReplayError, match=r"up\.bias"):
            loss.backward()
        bias.data = values


@every_way
def test_values_that_are_there_again(way):
    def train(model):
        model.zero_grad()
        loss = loss_of(model)
        before = [it.data for it in model.parameters()]
        for it in model.parameters():
            it.data = torch.zeros_like(it)
        with torch.no_grad():
            model(ids())
        for it, data in zip(model.parameters(), before, strict=True):
            it.data = data
        loss.backward()
        return gradients(model)

    check(way, train)


@every_way
def test_a_storage_that_is_given_its_bytes_when_it_is_used(way):
    """As FSDP has them: between the passes the memory is another's."""

    def train(model):
        model.zero_grad()
        loss = loss_of(model)
        for it in model.layers.parameters():
            kept, storage = it.detach().clone(), it.untyped_storage()
            size = storage.size()
            storage.resize_(0)
            others.append(torch.ones(size, dtype=torch.uint8))
            storage.resize_(size)
            # FSDP's copies do not count as a change, either.
            with torch.autograd._unsafe_preserve_version_counter(it), torch.no_grad():
                it.copy_(kept)
        loss.backward()
        return gradients(model)

    others = []
    check(way, train)


@every_way
def test_parameters_that_deepspeed_gathers_are_in_another_storage_each_time(way):
    def train(model):
        model.zero_grad()
        for number, it in enumerate(model.parameters()):
            it.ds_id = number
        loss = loss_of(model)
        for it in model.parameters():
            it.data = it.data.clone()
        loss.backward()
        return gradients(model)

    check(way, train)


@pytest.mark.parametrize("alpha", [0, "products"])
def test_a_step_of_each_parameter_when_its_gradient_is_there(alpha):
    """The optimizer in the backward pass: what comes after in a layer has stepped by then."""

    def train(model):
        def steps(parameter):
            with torch.no_grad():
                parameter.sub_(0.1 * parameter.grad)
            parameter.grad = None

        hooks = [it.register_post_accumulate_grad_hook(steps) for it in model.parameters()]
        loss_of(model).backward()
        for hook in hooks:
            hook.remove()
        return [it.detach().clone() for it in model.parameters()]

    model, whole = made(), made()
    girih.long_context(model, alpha=alpha)
    for _ in range(4):
        assert_same(train(whole), train(model))


@every_way
def test_a_weight_that_two_modules_have(way):
    def tied():
        model = Model()
        for layer in model.layers:
            layer.mlp.gate.weight = layer.mlp.up.weight
        return model

    def train(model):
        model.zero_grad()
        own = {name: it for name, it in larger(model).items() if "mlp.gate.weight" in name}
        loss, other = loss_of(model, own), loss_of(model)
        weights = [layer.mlp.up.weight for layer in model.layers]
        for it in weights:
            it.requires_grad_(False)
        loss.backward()
        other.backward()
        for it in weights:
            it.requires_grad_(True)
        return [it.grad for it in own.values()] + gradients(model)

    check(way, train, tied, passes=4)


@pytest.fixture
def _alone(tmp_path):
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("torch has no communication")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_what_a_sharding_puts_there_stays():
    tensor = torch.distributed.tensor
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    linear = nn.Linear(4, 4)
    whole = linear.weight
    shards = [
        nn.Parameter(tensor.distribute_tensor(torch.ones(4, 4), mesh, [tensor.Shard(dim)]))
        for dim in (0, 1)
    ]
    for was, now in ((whole, shards[0]), (shards[0], whole), (*shards,)):
        linear.weight = was
        weights = Weights(linear)
        linear.weight = now
        with weights.in_place():
            assert linear.weight is now
    # One of the same kind is a program's.
    weights = Weights(linear)
    linear.weight = nn.Parameter(2 * now.detach())
    with weights.in_place():
        assert linear.weight is now


@every_way
def test_layers_under_a_compiler(way):
    """Passes that are compiled run as they are."""
    model = made()
    for layer in model.layers:
        layer.compile(backend="eager")
    expected = loss_of(model)
    expected.backward()
    whole = gradients(model)
    split(model, way)
    for _ in range(3):
        model.zero_grad()
        loss_of(model).backward()
        assert_same(whole, gradients(model))


def test_logits_that_are_put_off_are_of_the_weights_that_the_model_ran_with():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=97,
    )
    model = made(lambda: transformers.LlamaForCausalLM(config).train())
    theirs, data = larger(model), ids(tokens=150)
    given = {"input_ids": data, "labels": data, "use_cache": False}

    def logits():
        return functional_call(model, theirs, (), given).logits.detach()

    expected = logits()
    girih.long_context(model, alpha=0, loss_in_tiles="fused")
    assert torch.equal(expected, logits())
