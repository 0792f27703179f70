"""Copies of a model that is split are the model as it was, and it lives no longer than without."""

import copy
import gc
import inspect
import io
import pickle
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import Block, Gated, Model, assert_same, gradients, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import api, placed  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).train()


def plain():
    return Model()


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda it: pickle.loads(pickle.dumps(it)),
    "saved": saved,
    "averaged": lambda it: torch.optim.swa_utils.AveragedModel(it).module,
    "twice": lambda it: copy.deepcopy(copy.deepcopy(it)),
}
MODELS = {"plain": (plain, True), "llama": (llama, True), "fused": (llama, "fused")}
NEAR = {"rtol": 1e-4, "atol": 1e-6}
"""The weight's gradient of the last layer is added up in another order where logits are put off."""


def made(name, **kwargs):
    """A model, and the same one split."""
    make, loss_in_tiles = MODELS[name]
    torch.manual_seed(0)
    whole = make()
    model = copy.deepcopy(whole)
    girih.long_context(model, alpha=0, loss_in_tiles=loss_in_tiles, **kwargs)
    return whole, model


def train(model):
    if isinstance(model, Model):
        return gradients(model, ids(batch=2))
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids(), labels=ids()).loss
    loss.backward()
    return [loss.detach(), *(it.grad for it in model.parameters())]


def assert_plain(model, whole):
    """It has the attributes and hooks of a model that was never split."""
    assert api.of(model) is None
    modules, others = dict(model.named_modules()), dict(whole.named_modules())
    assert modules.keys() == others.keys()
    for name, it in modules.items():
        assert type(it) is type(others[name])
        assert vars(it).keys() == vars(others[name]).keys(), name
        for table in placed.HOOKS:
            assert len(vars(it)[table]) == len(vars(others[name])[table]), (name, table)
        assert getattr(it, "loss_function", None) is getattr(others[name], "loss_function", None)
    assert model.state_dict().keys() == whole.state_dict().keys()
    assert repr(model) == repr(whole)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_the_model_as_it_was(name, way):
    whole, model = made(name)
    for is_new in (True, False):
        other = COPIES[way](model)
        assert_plain(other, whole)
        assert_same(train(whole), train(other))
        # The model itself goes on as it is, and what a copy learns is the copy's.
        with torch.no_grad():
            for it in other.parameters():
                it.zero_()
        calls = [layer["calls"] for layer in girih.long_context_report(model)["layers"]]
        assert calls == [0 if is_new else 1] * len(calls)
        for one, found in zip(train(whole), train(model), strict=True):
            torch.testing.assert_close(one, found, **NEAR)
    report = girih.long_context_report(model)["layers"]
    assert [layer["split"] for layer in report] == [2] * len(report)
    # And a copy can be split like any model.
    girih.long_context(other, alpha=0)
    assert api.of(other) is not api.of(model)
    api.remove(model)
    assert_plain(model, whole)


LOADS = """
import sys
import torch
sys.modules["girih"] = None
model = torch.load("model.pt", weights_only=False)
print(model(torch.arange(30)[None]).shape)
"""


def test_what_was_saved_needs_no_girih(tmp_path):
    _, model = made("plain")
    train(model)
    # The module of the tests imports it: the model is taken for another's.
    (tmp_path / "layers.py").write_text(
        inspect.getsource(sys.modules["long_layers"])
        .replace("import girih\n", "")
        .replace("from girih._long import api\n", "")
    )
    program = "import sys; sys.path.insert(0, '.'); import layers, torch, girih\n"
    program += "model = layers.Model(); girih.long_context(model, alpha=0)\n"
    program += "torch.save(model, 'model.pt')\n"
    for words in (program, "import sys; sys.path.insert(0, '.')\n" + LOADS):
        command = [sys.executable, "-c", words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([1, 30, 32])\n"


def replicas_of(module):
    """As `torch.nn.parallel.replicate` makes one, with weights of its own."""
    replicas = {it: it._replicate_for_data_parallel() for it in module.modules()}
    for it, replica in replicas.items():
        for name, inner in it._modules.items():
            setattr(replica, name, replicas[inner])
        for name, parameter in it._parameters.items():
            own = None if parameter is None else 2 * parameter.detach()
            setattr(replica, name, None if own is None else own.requires_grad_())
    return replicas[module]


@pytest.mark.parametrize("name", MODELS)
def test_a_replica_runs_as_it_is_with_weights_of_its_own(name):
    whole, model = made(name)
    if name != "plain":
        data = {"input_ids": ids(), "labels": ids(), "use_cache": False}
    else:
        data = {"ids": ids()}

    def run(one):
        replica = replicas_of(one)
        given = replica(**data)
        given = given if torch.is_tensor(given) else given.loss
        given.pow(2).mean().backward()
        own = [it for inner in replica.modules() for it in vars(inner).values()]
        return [given.detach(), *(it.grad for it in own if torch.is_tensor(it) and it.is_leaf)]

    found = run(model)
    assert_same(run(whole), found)
    assert len(found) > 10
    assert all(layer["calls"] == 0 for layer in girih.long_context_report(model)["layers"])
    assert all(it.grad is None for it in model.parameters())


def test_a_class_that_says_itself_what_it_is_made_of():
    class Told(Gated):
        def __getstate__(self):
            return super().__getstate__() | {"is_told": True}

    model = nn.Sequential(*[Told() for _ in range(2)])
    girih.long_context(model, alpha=0)
    other = copy.deepcopy(model)
    for it in other:
        assert it.is_told
        assert not vars(it).keys() & {"forward", *placed.ASKED}


class Around:
    """What a library puts in place of a module's forward, as accelerate does its hooks."""

    def __init__(self, module):
        self.module, self.calls = module, 0
        module._old_forward, module.forward = module.forward, self

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.module._old_forward(*args, **kwargs)


def test_a_forward_that_was_there_before_is_there_in_a_copy():
    torch.manual_seed(0)
    model = Model()
    expected = gradients(model, ids())
    around = [Around(model.layers[1]), Around(model.layers[1].mlp)]
    girih.long_context(model, alpha=0)
    other = copy.deepcopy(model)
    assert_same(expected, gradients(other, ids()))
    assert [it.calls for it in around] == [0, 0]
    assert type(other.layers[1].forward) is Around
    assert other.layers[1].forward.module is other.layers[1]
    assert other.layers[1].forward.calls == 1
    assert_same(expected, gradients(model, ids()))
    assert min(it.calls for it in around) > 0
    api.remove(model)
    assert model.layers[1].forward is around[0]
    assert model.layers[1].mlp.forward is around[1]


def test_a_forward_that_was_put_there_later_stays():
    torch.manual_seed(0)
    model = Model()
    expected = gradients(model, ids())
    girih.long_context(model, alpha=0)
    layer = model.layers[1]
    around = Around(layer)
    assert_same(expected, gradients(model, ids()))
    # Of a copy it leads to the forward of the copy.
    other = copy.deepcopy(model)
    assert other.layers[1]._old_forward.__self__ is other.layers[1]
    assert_same(expected, gradients(other, ids()))
    for _ in range(2):
        # Whether it is taken away, or put there anew.
        api.remove(model)
        assert layer.forward is around
        assert_same(expected, gradients(model, ids()))
        girih.long_context(model, alpha=0)
        assert_same(expected, gradients(model, ids()))
        assert girih.long_context_report(model)["layers"][1]["split"] == 1


def test_two_that_have_a_module_in_common():
    """Each can be taken away before the other."""
    torch.manual_seed(0)
    model = Model()
    expected = gradients(model, ids())
    both = nn.ModuleDict({"model": model})
    for first, second in ((model, both), (both, model)):
        girih.long_context(model, alpha=0)
        girih.long_context(both, alpha="products")
        assert_same(expected, gradients(model, ids()))
        api.remove(first)
        assert_same(expected, gradients(model, ids()))
        api.remove(second)
        assert not any("forward" in vars(it) for it in model.modules())
        assert not any(placed.ASKED[0] in vars(it) for it in model.modules())


def test_what_programs_look_at_is_that_of_the_module():
    whole, model = made("plain")
    for one, other in zip(whole.modules(), model.modules(), strict=True):
        assert type(one) is type(other)
        assert inspect.signature(one.forward) == inspect.signature(other.forward)
    assert "mask" in inspect.signature(model.layers[0].forward).parameters
    assert model.layers[0].forward.__name__ == "forward"
    assert repr(whole) == repr(model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("has_run", [False, True])
def test_a_model_goes_when_nobody_has_it(name, has_run):
    _, model = made(name)
    if has_run:
        train(model)
    known = [weakref.ref(it) for it in (model, *model.modules())]
    context = weakref.ref(api.of(model))
    del model
    gc.collect()
    assert not [it() for it in known if it() is not None]
    assert context() is None


def test_a_model_whose_layers_know_it_goes_too():
    class Knows(Block):
        model = None

    torch.manual_seed(0)
    model = Model(make=Knows)
    for layer in model.layers:
        # No attribute of a module: it would be one of the modules within.
        layer.model = [model]
    girih.long_context(model, alpha=0)
    known = weakref.ref(model)
    del model, layer
    gc.collect()
    assert known() is None
