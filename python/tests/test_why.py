"""Why a run was refused memory: asked from inside, by a file, and written when a run dies."""

import json
import pickle
import sys
import types

import pytest

import girih
from girih import _run, _why

MIB = 1 << 20
FRAMES = [
    {"filename": "/w/model.py", "line": 7, "name": "forward"},
    {"filename": "torch/nn/modules/module.py", "line": 1, "name": "_call_impl"},
    {"filename": "/w/train.py", "line": 3, "name": "<module>"},
]


def entry(action, address, mebibytes, **more):
    key = "device_free" if action == "oom" else "addr"
    return {
        "action": action,
        key: address,
        "size": mebibytes * MIB,
        "stream": 0,
        "time_us": 1,
        "frames": FRAMES,
        **more,
    }


def snapshot():
    """A run whose tensors fill the card, and one more request."""
    entries = []
    for index in range(4):
        address = (index + 1) << 32
        entries += [entry("segment_alloc", address, 100), entry("alloc", address, 100)]
    entries.append(entry("oom", 30 * MIB, 60))
    return {"segments": [], "device_traces": [entries], "allocator_settings": {}}


TEXT = "CUDA out of memory. GPU 0 has a total capacity of 0.50 GiB of which 30.00 MiB is free."


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@pytest.fixture
def fake_torch(monkeypatch):
    """A torch that has a history of a run that died."""
    cuda = types.SimpleNamespace(
        memory=types.SimpleNamespace(_snapshot=snapshot),
        is_available=lambda: True,
        mem_get_info=lambda device=None: (30 * MIB, 512 * MIB),
    )
    torch = types.ModuleType("torch")
    torch.cuda = cuda
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_a_process_is_told_why_its_request_was_refused(fake_torch):
    answer = girih.why(error=OutOfMemoryError(TEXT))
    assert answer["verdict"] == "too_much"
    assert (answer["requested"], answer["live"]) == (60 * MIB, 400 * MIB)
    assert answer["capacity"] == 430 * MIB
    assert answer["lines"][0]["where"] == "/w/model.py:7 forward"
    said = str(answer)
    assert said.startswith("The tensors of this run need more than there is")
    assert "What to do" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_history_that_was_not_kept_is_asked_for(fake_torch, monkeypatch):
    empty = {"segments": [], "device_traces": [[]], "allocator_settings": {}}
    monkeypatch.setattr(fake_torch.cuda.memory, "_snapshot", lambda: empty)
    with pytest.raises(girih.GirihError, match="_record_memory_history"):
        girih.why()


def test_a_file_is_answered_with_the_log_beside_it_and_as_the_command_does(python, tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol=4))
    (tmp_path / "run.log").write_text(TEXT)
    ran = python("-m", "girih", "why", "run.pickle", "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["name"] == "run"
    assert girih.why(path) == told


def test_what_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(b"nothing")
    with pytest.raises(girih.GirihError, match="cannot read run:"):
        girih.why(path)
    with pytest.raises(girih.GirihError, match=r"cannot read .*none\.pickle"):
        girih.why(tmp_path / "none.pickle")


def test_a_run_that_dies_leaves_the_answer_the_recording_and_the_error(
    fake_torch, tmp_path, capsys
):
    path = tmp_path / "why.txt"
    error = OutOfMemoryError(TEXT)
    assert _why.is_out_of_memory(error)
    _why.write(error, str(path))
    assert "need more than there is" in path.read_text()
    assert TEXT in path.with_suffix(".log").read_text()
    assert pickle.loads(path.with_suffix(".pickle").read_bytes()) == snapshot()
    assert "need more than there is" in capsys.readouterr().err


def test_an_error_that_memory_has_caused_is_known():
    error = ValueError("the step failed")
    error.__cause__ = OutOfMemoryError(TEXT)
    assert _why.is_out_of_memory(error)
    assert not _why.is_out_of_memory(ValueError("other"))


@pytest.mark.parametrize(
    ("words", "own", "program"),
    [
        ("--why train.py", "--why", "train.py"),
        ("--why=x.txt -q train.py --why", "--why=x.txt -q", "train.py --why"),
    ],
)
def test_why_is_an_option_of_run(words, own, program):
    assert _run.split(words.split()) == (own.split(), program.split())


PROGRAM = """
import sys, types
memory = types.SimpleNamespace(_record_memory_history=lambda **k: print("recording", flush=True))
torch = types.ModuleType("torch")
sys.path.insert(0, "fake")
import torch
class OutOfMemoryError(RuntimeError): pass
raise OutOfMemoryError("CUDA out of memory.")
"""


def test_a_run_with_why_says_why_it_died(python, tmp_path):
    (tmp_path / "fake").mkdir()
    # A torch that counts as none for the allocator, and has a history.
    (tmp_path / "fake/torch.py").write_text(
        "import pickle, types\n"
        "__version__ = '0.0'\n"
        "def _lazy_call(function): function()\n"
        "cuda = types.SimpleNamespace(_lazy_call=_lazy_call, is_available=lambda: False,\n"
        "    memory=types.SimpleNamespace(_record_memory_history=lambda **k: None,\n"
        "        _snapshot=lambda: pickle.load(open('snapshot', 'rb'))))\n"
    )
    (tmp_path / "snapshot").write_bytes(pickle.dumps(snapshot(), protocol=4))
    (tmp_path / "train.py").write_text(PROGRAM)
    ran = python("-W", "ignore", "-m", "girih", "run", "--mode", "off", "--why", "train.py")
    assert ran.returncode == 1, ran.stderr
    assert "OutOfMemoryError" in ran.stderr
    assert "need more than there is" in ran.stderr
    assert "What to do" in (tmp_path / "girih-why.txt").read_text()
