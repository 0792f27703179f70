"""Compiling the shim: with sources, headers and a compiler that are made up here."""

import dataclasses
import os
import stat
import threading

import pytest

from girih import _shim, _toolchain
from girih._errors import GirihError
from girih._toolchain import Torch

SOURCES = [("one.cpp", "int one;"), ("two.cpp", "int two;"), ("one.h", "")]

COMPILER = """#!/bin/sh
[ "$1" = --version ] && { echo "made-up 1.0"; exit; }
echo "$@" >> "$0.calls"
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
sleep 0.05
echo compiled > "$out"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that notes how it is called; gives the path of its notes."""
    path = tmp_path / "bin" / "made-up"
    path.parent.mkdir()
    path.write_text(COMPILER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(path))
    return path.with_name("made-up.calls")


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """A torch for CUDA 13 with the headers beside it that its wheel brings."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    headers(site / "nvidia/cu13/include", 13)
    return Torch("2.11.0+cu130", site / "torch", "13.0", True)


def headers(folder, major, *, has_crt=False):
    folder.mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {major}010\n")
    if has_crt:
        (folder / "crt").mkdir()
        (folder / "crt/host_defines.h").touch()
    return folder


def test_a_shim_is_compiled_once_and_then_found(torch, compiler, tmp_path):
    first = _shim.build(torch, SOURCES, cache=tmp_path / "cache")
    calls = compiler.read_text()
    second = _shim.build(torch, SOURCES, cache=tmp_path / "cache")
    assert first.path.read_text() == "compiled\n"
    assert first.path.name == "girih_shim.so"
    assert second == dataclasses.replace(first, seconds=0.0)
    assert compiler.read_text() == calls
    assert len(calls.splitlines()) == 1
    whole = (first.path.parent / "source/whole.cpp").read_text()
    assert whole == '#include "one.cpp"\n#include "two.cpp"\n'


def test_what_the_shim_depends_on_makes_another(torch, compiler, tmp_path):
    def path(torch=torch, sources=SOURCES):
        return _shim.build(torch, sources, cache=tmp_path / "cache").path

    others = [
        path(dataclasses.replace(torch, version="2.11.1")),
        path(dataclasses.replace(torch, cxx11_abi=False)),
        path(sources=[*SOURCES, ("three.cpp", "")]),
    ]
    assert len({path(), *others}) == 4


def test_processes_that_start_together_compile_once(torch, compiler, tmp_path):
    def build():
        _shim.build(torch, SOURCES, cache=tmp_path / "cache")

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiler.read_text().splitlines()) == 1


def test_a_compiler_that_fails_leaves_no_shim_and_says_what_it_said(torch, tmp_path, monkeypatch):
    path = tmp_path / "bad"
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit\necho "x.h:1: error: no such thing" >&2\nexit 1\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(GirihError, match="no such thing"):
        _shim.build(torch, SOURCES, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_folder_that_cannot_be_written_to_is_replaced_by_a_temporary_one(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(_shim.tempfile, "gettempdir", lambda: str(tmp_path))
    found = _shim.writable(blocked / "cache")
    assert found == tmp_path / f"girih-{os.getuid()}"
    assert found.is_dir()


@pytest.mark.parametrize(
    ("change", "text"),
    [({"cuda": None}, "built without CUDA"), ({"version": "2.5.1"}, "2.6 or later")],
)
def test_a_torch_that_cannot_serve_is_refused(torch, compiler, tmp_path, change, text):
    with pytest.raises(GirihError, match=text):
        _shim.build(dataclasses.replace(torch, **change), SOURCES, cache=tmp_path)


def test_headers_of_torchs_own_release_are_taken(torch, tmp_path):
    headers(tmp_path / "cuda12/include", 12)
    environ = {"CUDA_HOME": str(tmp_path / "cuda12"), "PATH": ""}
    found = _toolchain.find_cuda_headers(torch, environ)
    assert found[0] == torch.folder.parent / "nvidia/cu13/include"


def test_the_missing_header_is_taken_from_a_toolkit_of_the_same_release(torch, tmp_path):
    toolkit = headers(tmp_path / "cuda13/include", 13, has_crt=True)
    environ = {"CUDA_HOME": str(tmp_path / "cuda13"), "PATH": ""}
    assert _toolchain.find_cuda_headers(torch, environ)[1:] == [toolkit]


def test_without_headers_the_error_says_what_to_install(torch):
    with pytest.raises(GirihError, match="pip install nvidia-cuda-runtime-cu12"):
        _toolchain.find_cuda_headers(dataclasses.replace(torch, cuda="12.8"), {"PATH": ""})


def test_without_a_compiler_the_error_says_what_to_install():
    with pytest.raises(GirihError, match="apt install g"):
        _toolchain.find_compiler({"PATH": ""})
    with pytest.raises(GirihError, match="no-such-compiler"):
        _toolchain.find_compiler({"PATH": "", "CXX": "no-such-compiler"})


def test_the_standard_is_that_of_torchs_headers(torch):
    assert "-std=c++20" in _toolchain.compile_flags(torch, [])
    old = dataclasses.replace(torch, version="2.6.0", cxx11_abi=False)
    assert "-std=c++17" in _toolchain.compile_flags(old, [])
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in _toolchain.compile_flags(old, [])


def test_the_library_carries_the_sources_of_its_own_interface():
    native = pytest.importorskip("girih._native", reason="the extension is not built")
    sources = dict(native.shim_sources())
    assert f"#define GIRIH_ABI {native.abi()}" in sources["girih.h"]
    assert any(name.endswith(".cpp") for name in sources)
