"""Enabling, without a GPU: refusals, and the whole way on a simulated device where torch is."""

import importlib.util
import json

import pytest

import girih
from girih import GirihError

native = pytest.importorskip("girih._native", reason="the extension is not built")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

SIMULATED = 'girih.enable({mode!r}, sim={{"capacity": 1 << 30}}, plan_dir=False)\n'


def test_nothing_is_enabled_by_import():
    assert not girih.is_enabled()
    with pytest.raises(GirihError, match=r"girih\.enable\(\)"):
        girih.stats()


def test_marks_and_steps_cost_nothing_and_do_nothing_if_not_enabled():
    girih.mark("here")
    with girih.step():
        pass


def test_without_a_driver_or_torch_a_warning_says_what_is_missing(python):
    result = python("-c", "import girih; girih.enable(); print(girih.is_enabled())")
    if result.stdout == "True\n":
        pytest.skip("there is a driver and a torch here: enabling works")
    assert result.stdout == "False\n", result.stderr
    assert "GirihWarning" in result.stderr
    assert "libcuda.so.1" in result.stderr or "torch" in result.stderr


def test_the_mode_off_leaves_everything_alone(python):
    code = (
        "import girih, sys\n"
        "girih.enable('off'); girih.enable('off')\n"
        "print(girih.is_enabled(), girih.stats()['mode'], 'torch' in sys.modules)\n"
    )
    result = python("-c", code)
    assert result.stdout == "False off False\n", result.stderr


def test_a_second_call_with_other_arguments_is_refused(python):
    result = python("-c", "import girih; girih.enable('off'); girih.enable('auto')")
    assert "enabled already" in result.stderr


def test_the_launcher_outranks_the_program(python):
    code = "import girih; girih.enable('native'); print(girih.stats()['mode'])"
    result = python("-c", code, GIRIH_MODE="off")
    assert result.stdout == "off\n", result.stderr


def test_settings_that_the_heaps_refuse_are_an_error_with_their_reason(python):
    code = "from girih import _native\n_native.configure('{\"nonsense\": 1}')"
    result = python("-c", code)
    assert "ValueError" in result.stderr
    assert "nonsense" in result.stderr


def test_marks_and_reports_work_before_any_request():
    native.mark("step", "1")
    native.mark("forward_step", "0")
    assert json.loads(native.report())["devices"] == []
    with pytest.raises(RuntimeError, match="not used"):
        native.save_trace(0, "/nowhere")


@needs_torch
def test_the_shim_is_compiled_against_this_torch_and_installs(python):
    code = "import girih\n" + SIMULATED.format(mode="expandable") + "print(girih.stats()['door'])"
    result = python("-c", code)
    assert result.stdout == "shim\n", result.stderr


@needs_torch
def test_a_real_loop_is_marked(python):
    code = (
        "import girih, torch\n" + SIMULATED.format(mode="auto") + "marks = []\n"
        "watch = girih._process.enabled().watch\n"
        "watch._mark = lambda kind, name: marks.append(kind)\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(2):\n"
        "    model(torch.randn(2, 8)).sum().backward(); optimizer.step()\n"
        "model.eval(); model.train()\n"
        "with girih.step(): pass\n"
        "girih.mark('done')\n"
        "print(*marks)\n"
    )
    result = python("-c", code)
    expected = "backward optimizer step backward optimizer step eval step step_end other\n"
    assert result.stdout == expected, result.stderr


@needs_torch
def test_hooks_break_no_graph_of_the_compiler(python):
    code = (
        "import girih, torch\n"
        + SIMULATED.format(mode="native").replace("sim=", "modules=True, sim=")
        + "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())\n"
        "compiled = torch.compile(model, backend='eager', fullgraph=True)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "step = torch.compile(optimizer.step, backend='eager')\n"
        "for _ in range(3):\n"
        "    compiled(torch.randn(2, 8)).sum().backward(); step()\n"
        "print('done')\n"
    )
    result = python("-c", code)
    assert result.stdout == "done\n", result.stderr


@needs_torch
def test_modules_are_marked_two_levels_deep(python):
    code = (
        "import girih, torch\n"
        + SIMULATED.format(mode="native").replace("sim=", "modules=True, sim=")
        + "marks = []\n"
        "watch = girih._process.enabled().watch\n"
        "watch._mark = lambda kind, name: marks.append(f'{kind}:{name}')\n"
        "inner = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)))\n"
        "model = torch.nn.Sequential(inner)\n"
        "model(torch.randn(1, 2)).sum().backward()\n"
        "print(*marks)\n"
    )
    result = python("-c", code)
    forward = "forward:0 fwd_in:Sequential fwd_in:0 fwd_in:0.0 fwd_out:0.0 fwd_out:0 "
    # All three have one output, whose gradient comes back at one moment.
    backward = "fwd_out:Sequential backward:0 bwd_in:0.0 bwd_in:0 bwd_in:Sequential\n"
    assert result.stdout == forward + backward, result.stderr
