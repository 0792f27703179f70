"""How much is kept, what a user gets wrong, the command, and models of Hugging Face."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import Model, assert_same, gradients, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih import _summary  # noqa: E402
from girih._long import api  # noqa: E402
from girih._long.layout import Layout, candidates  # noqa: E402
from girih._long.part import Held, Part  # noqa: E402
from girih._long.share import SPARE, Filling, Fixed, rounded  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_tokens_are_rounded_to_whole_tiles():
    assert [rounded(it, 1000) for it in (0, 127, 128, 300, 999, 1000, 2000)] == [
        0, 0, 128, 256, 896, 1000, 1000,
    ]  # fmt: skip
    assert rounded(33.7, 200) == 33
    assert Fixed(0.5, 0).part(0, 1024, Held()) == Part(512)
    assert Fixed("products", 0).part(0, 1024, Held()) == Part(0, products=True)


def test_a_budget_is_filled_from_the_last_layer_and_given_back():
    peak, steps, held = 600, 0, Held(nothing=1, whole=5)
    share = Filling(1000, 4, 0, peak=lambda: peak, steps=lambda: steps)

    def kept():
        parts = [share.part(layer, 50, held) for layer in range(4)]
        return "".join("w" if it.first == 50 else "p" if it.products else "-" for it in parts)

    assert kept() == "----"
    steps = 1
    assert kept() == "----"
    # 980 may be held and 600 are: of 50 tokens 7.6 bytes each. Products are guessed to have 3.
    steps = 2
    assert kept() == "--pp"
    # Then they are seen to have 1, and all else that a layer could hold 3.
    held = Held(nothing=1, products=2, whole=5)
    assert kept() == "pppw"
    peak = 980
    assert kept() == "pppw"
    peak = 1060
    assert kept() == "pppp"
    # What was given back is not taken away again.
    assert kept() == "pppp"
    peak = 10_000
    assert kept() == "----"
    # A layer of which nothing could be computed again has nothing to fill.
    held = Held()
    assert kept() == "----"


def test_what_one_layer_has_shown_of_products_holds_for_the_others():
    steps, held = 2, [Held(nothing=10, whole=50) for _ in range(4)]
    share = Filling(10_000, 4, 0, peak=lambda: 8500, steps=lambda: steps)

    def kept():
        # 1,300 of 50 tokens: 26 bytes each.
        return [share.part(layer, 50, held[layer]).products for layer in range(4)]

    assert kept() == [False] * 4, "products are guessed to have 30"
    # One has shown that it is 6.
    held[0].products = 16
    assert kept() == [True] * 4


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 1.2])
def test_a_model_whose_memory_is_filled_learns_the_same(part):
    model = Model(layers=6)
    whole = Model(layers=6)
    whole.load_state_dict(model.state_dict())
    girih.long_context(model, alpha=0)
    expected, data = gradients(whole, ids(tokens=600)), ids(tokens=600)
    gradients(model, data)
    layers = api.of(model).layers
    least = sum(layer.seen.bytes_kept for layer in layers)
    everything = sum(layer.seen.bytes_saved for layer in layers)
    budget = int((least + part * (everything - least)) / (1 - SPARE))
    most, steps = 0, 0

    def now():
        # Of a layer that is kept whole nothing is counted: it has all that it saved before.
        sizes = ((it.seen.kept == 600, it.seen) for it in layers)
        return sum(it.bytes_saved if is_all else it.bytes_kept for is_all, it in sizes)

    share = Filling(budget, 6, 0, peak=lambda: most, steps=lambda: steps)
    for layer in layers:
        layer.share = share
    held = []
    for steps in range(8):  # noqa: B007 - the share asks for it
        assert_same(expected, gradients(model, data))
        most = max(most, now())
        held.append(now())
    assert held[0] == held[1] == least
    # Products were guessed in the third step; from the fourth on it is what fits.
    assert held[-1] == held[4]
    assert held[-1] <= budget
    # Of what there is room for, less than what one layer could hold is left over.
    assert held[-1] > min(budget * (1 - SPARE), everything) - everything / 6


def test_a_budget_that_holds_everything_leaves_the_layers_alone():
    share = Filling(10_000, 3, 0, peak=lambda: 10, steps=lambda: 5)
    held = Held(nothing=1, products=2, whole=5)
    assert [share.part(layer, 50, held).first for layer in range(3)] == [50] * 3


def test_steps_are_counted_from_when_they_are_asked_for():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    first = api.steps_from_now()
    optimizer.step()
    second = api.steps_from_now()
    optimizer.step()
    assert (first(), second()) == (2, 1)


def test_layouts_are_found_by_two_lengths():
    assert list(candidates((2, 10, 8), (2, 4, 8), 10, 4)) == [Layout(1)]
    assert list(candidates((20, 8), (8, 8), 10, 4)) == [Layout(0, 2, 1), Layout(0, 1, 2)]
    assert list(candidates((10, 10), (4, 4), 10, 4)) == []
    assert list(candidates((10, 8), (10, 8), 10, 4)) == []
    assert list(candidates((15, 8), (6, 8), 10, 4)) == []
    flat = torch.arange(20).view(20, 1)
    rows = Layout(0, 2, 1).rows(flat, 6, 10, 10)
    assert rows.flatten().tolist() == [6, 7, 8, 9, 16, 17, 18, 19]
    assert Layout(0, 2, 1).together(rows).shape == (8, 1)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"alpha": 2}, "give alpha as a part"),
        ({"alpha": [0.5]}, "give alpha for each of the 3 layers"),
        ({"alpha": 0.5, "gpu_budget": "1GiB"}, "give alpha or gpu_budget"),
        ({"alpha": 0.5, "layers": "blocks"}, "name a list of layers that is there: layers"),
    ],
)
def test_errors_say_what_to_do(kwargs, text):
    with pytest.raises(girih.GirihError, match=text):
        girih.long_context(Model(), **kwargs)


def test_models_that_cannot_be_split_say_why():
    with pytest.raises(girih.GirihError, match="give layers="):
        girih.long_context(nn.Linear(3, 3), alpha=0)
    model = Model()
    model.layers[0].gradient_checkpointing = True
    with pytest.raises(girih.GirihError, match="turn gradient checkpointing off"):
        girih.long_context(model, alpha=0)
    with pytest.raises(girih.GirihError, match=r"call girih\.long_context"):
        girih.long_context_report(model)
    if not torch.cuda.is_available():
        with pytest.raises(girih.GirihError, match="give alpha: there is no GPU"):
            girih.long_context(Model())


PROGRAM = """
import torch
from torch import nn
import girih
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)
    def forward(self, x):
        return x + torch.tanh(self.linear(x))
model = nn.Sequential(nn.Linear(8, 32), nn.Sequential(*[Layer() for _ in range(3)]))
model(torch.randn(1, 512, 8)).sum().backward()
print([layer["kept"] for layer in girih.long_context_report(model)["layers"]])
"""


def test_what_a_run_is_told_of_its_model():
    model = Model(experts=True)
    girih.long_context(model, alpha=0.5)
    for _ in range(2):
        gradients(model, ids(tokens=600))
    line = _summary.line_of_split(girih.long_context_report(model)["layers"])
    assert line.startswith("girih, split by tokens: 3 of 3 layers, ")
    assert "that layers save of 600 tokens; layers.0: mlp.experts is kept whole" in line
    girih.long_context(model, alpha=0.5, least_tokens=1000)
    gradients(model, ids())
    layers = girih.long_context_report(model)["layers"]
    assert _summary.line_of_split(layers) == "girih, split by tokens: 0 of 3 layers"


@pytest.mark.parametrize(
    ("alpha", "kept"), [("0.25", [128, 128, 128]), ("0.5,products,1", [256, 0, 0])]
)
def test_a_program_is_split_unchanged(alpha, kept, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    options = [f"--long-context={alpha}", "--report", "report.json"]
    command = [sys.executable, "-m", "girih", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"{kept}\n", done.stderr
    (model,) = json.loads((tmp_path / "report.json").read_text())["long_contexts"]
    assert [layer["kept"] for layer in model["layers"]] == kept


@pytest.mark.parametrize("alpha", ["2", "products,-1", "half", "0.5,", ""])
def test_a_part_that_is_none_is_refused(alpha, tmp_path):
    command = [sys.executable, "-m", "girih", "run", f"--long-context={alpha}", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "give a part, 0 to 1, or products, or one for each layer" in done.stderr


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gpt2", "mixtral"])
def test_models_of_hugging_face(name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 3}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    make = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(**small, head_dim=8)
        ),
        "phi3": lambda: transformers.Phi3ForCausalLM(
            transformers.Phi3Config(**small, pad_token_id=0)
        ),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=3, n_head=4, attn_pdrop=0.0)
        ),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**small, num_local_experts=4)
        ),
    }
    model = make[name]().train()
    run = Output(model)
    expected = gradients(run, ids(tokens=260, batch=2))
    for alpha in (0, "products", 0.5):
        girih.long_context(model, alpha=alpha)
        for _ in range(3):
            assert_same(expected, gradients(run, ids(tokens=260, batch=2)))
        report = girih.long_context_report(model)["layers"]
        assert all(layer["split"] > 0 for layer in report)


class Output(nn.Module):
    """A model of Hugging Face, as one that gives a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, data):
        return self.model(input_ids=data, use_cache=False).logits
