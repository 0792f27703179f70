"""Which of the wheel's shims serves which torch, and what is compiled instead."""

import dataclasses
import json
import os
import platform
import re
import types

import pytest

from girih import _install, _prebuilt, _shim
from girih._errors import GirihError
from girih._toolchain import Torch

SOURCES = [("one.cpp", "int one;"), ("one.h", "")]


@pytest.fixture
def torch(tmp_path):
    return Torch("2.11.0+cu130", tmp_path / "torch", "13.0", True)


@pytest.fixture
def folder(tmp_path):
    """What a wheel has: shims for 2.11 and 2.14, of one machine and one source."""
    folder = tmp_path / "_shims"
    folder.mkdir()
    shims = [("torch-2.11.so", ["2.11.0"]), ("torch-2.14.so", ["2.14.0", "2.14.1"])]
    index = {
        "machine": platform.machine(),
        "sources": _prebuilt.digest_of(SOURCES),
        "shims": [
            {"file": name, "releases": releases, "cuda": [12, 13], "cxx11_abi": True}
            for name, releases in shims
        ],
    }
    for name, _ in shims:
        (folder / name).write_bytes(b"no library")
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("version", "cuda", "name"),
    [
        ("2.11.0+cu130", "13.0", "torch-2.11.so"),
        ("2.11.0", "12.8", "torch-2.11.so"),
        ("2.14.0+cu130", "13.0", "torch-2.14.so"),
        ("2.14.1+cu132", "13.2", "torch-2.14.so"),
    ],
)
def test_a_torch_of_the_index_has_the_shim_of_its_release(torch, folder, version, cuda, name):
    torch = dataclasses.replace(torch, version=version, cuda=cuda)
    assert _prebuilt.find(torch, SOURCES, folder=folder).path == folder / name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "2.12.0+cu130"}, r"for torch 2\.12\.0 \(the wheel has 2\.11 to 2\.14\)"),
        ({"version": "2.11.1+cu130"}, r"no prebuilt shim for torch 2\.11\.1"),
        ({"version": "2.11.0a0+79aa17489c.nv26.4"}, r"no prebuilt shim for torch 2\.11\.0a0"),
        ({"version": "2.11.0+git0123"}, "no build of its publishers"),
        ({"cxx11_abi": False}, r"none for torch 2\.11\.0 with CUDA 13 and the old C.. ABI"),
        ({"cuda": "11.8"}, "CUDA 11"),
    ],
)
def test_any_other_torch_has_none_and_is_told_why(torch, folder, change, why):
    found = _prebuilt.find(dataclasses.replace(torch, **change), SOURCES, folder=folder)
    assert found.path is None
    assert re.search(why, found.why_not), found.why_not


def test_shims_of_other_sources_or_machines_are_left_alone(torch, folder):
    other = [*SOURCES, ("two.cpp", "")]
    assert "another version" in _prebuilt.find(torch, other, folder=folder).why_not
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"machine": "m68k"}))
    assert "m68k" in _prebuilt.find(torch, SOURCES, folder=folder).why_not
    (folder / "index.json").write_text("{")
    assert "no compiled shims" in _prebuilt.find(torch, SOURCES, folder=folder).why_not


def test_the_wheels_shim_needs_no_compiler(torch, folder, monkeypatch):
    monkeypatch.setattr(_prebuilt.find, "__kwdefaults__", {"folder": folder})
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "")
    built = _shim.get(torch, SOURCES)
    assert (built.path, built.seconds, built.why_compiled) == (
        folder / "torch-2.11.so",
        0.0,
        None,
    )
    with pytest.raises(GirihError, match=r"C\+\+ compiler|headers of CUDA"):
        _shim.get(dataclasses.replace(torch, version="2.12.0"), SOURCES)


def test_a_shim_of_the_wheel_that_does_not_load_is_compiled_and_stays(
    torch, folder, tmp_path, monkeypatch
):
    """As with a libstdc++ older than the wheel is for."""
    monkeypatch.setattr(_prebuilt.find, "__kwdefaults__", {"folder": folder})
    compiled = tmp_path / "compiled.so"
    compiled.touch()
    monkeypatch.setattr(_shim, "build", lambda *_: _shim.Built(compiled, 1.0))
    monkeypatch.setattr(_install, "torch_of", lambda _: torch)

    def load(path, mode):
        if path != str(compiled):
            raise OSError("version `GLIBCXX_9' not found")
        return types.SimpleNamespace(mode=mode)

    monkeypatch.setattr(_install.ctypes, "CDLL", load)
    library, path = _install._load_shim(torch, SOURCES)
    assert (library.mode, path) == (os.RTLD_NOW, compiled)
    assert (folder / "torch-2.11.so").is_file()
