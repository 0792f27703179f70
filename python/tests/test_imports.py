"""Being called when a module is imported."""

import importlib
import sys

import pytest

from girih import _imports
from girih._imports import when_imported


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the path, which is gone after the test."""
    folder = tmp_path / "girih_test_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("value = 1\nloader = __spec__.loader\n")
    (folder / "broken.py").write_text("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "girih_test_package"
    for name in [name for name in sys.modules if name.startswith("girih_test_package")]:
        del sys.modules[name]
    _imports._waiting.clear()


def test_the_callback_comes_after_the_module_is_whole(package):
    seen = []
    when_imported(f"{package}.part", lambda module: seen.append(module.value))
    assert seen == []
    importlib.import_module(f"{package}.part")
    assert seen == [1]


def test_a_module_that_is_there_calls_back_at_once(package):
    importlib.import_module(f"{package}.part")
    seen = []
    when_imported(f"{package}.part", seen.append)
    assert len(seen) == 1


def test_every_callback_comes_and_each_once(package):
    seen = []
    when_imported(f"{package}.part", lambda module: seen.append("first"))
    when_imported(f"{package}.part", lambda module: seen.append("second"))
    importlib.reload(importlib.import_module(f"{package}.part"))
    assert seen == ["first", "second"]


def test_the_loader_is_left_as_it_was(package):
    when_imported(f"{package}.part", lambda module: None)
    part = importlib.import_module(f"{package}.part")
    assert "exec_module" not in vars(part.loader)
    assert part.__loader__ is part.loader


def test_an_error_of_the_callback_comes_out_of_the_import(package):
    def refuse(module):
        raise RuntimeError("not with me")

    when_imported(f"{package}.part", refuse)
    with pytest.raises(RuntimeError, match="not with me"):
        importlib.import_module(f"{package}.part")


def test_a_module_that_breaks_breaks_as_ever(package):
    when_imported(f"{package}.broken", lambda module: None)
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(f"{package}.broken")


def test_a_module_that_does_not_exist_is_missing_as_ever(package):
    when_imported(f"{package}.nothing", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module(f"{package}.nothing")
