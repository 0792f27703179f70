"""Settings that a program changes while it runs, with a torch that is not there."""

import types

import pytest

from girih import _run_time

OLD, NEW = "_cuda_cudaCachingAllocator_set_allocator_settings", "_accelerator_setAllocatorSettings"


class Torch:
    """As much of torch as there is to wrap: it refuses what begins with a question mark."""

    def __init__(self, version: str) -> None:
        self.__version__ = version
        self.texts: list[str] = []
        self._C = types.SimpleNamespace(**{OLD: self._read, NEW: self._read})

    def _read(self, text: str) -> None:
        if text.startswith("?"):
            raise RuntimeError("torch refuses it")
        self.texts.append(text)


def follow(version: str, door: str):
    torch, heard = Torch(version), []

    def change(text: str) -> None:
        if text == "no":
            raise ValueError("the mode has no such setting")
        heard.append(text)

    _run_time.follow(torch, door, change)
    return torch, heard


@pytest.mark.parametrize(
    ("version", "door", "name", "kind"),
    [
        ("2.6.0", "shim", OLD, RuntimeError),
        ("2.9.1+cu128", "plug", OLD, RuntimeError),
        ("2.11.0", "plug", OLD, ValueError),
        ("2.15.0", "plug", NEW, ValueError),
    ],
)
def test_what_a_program_sets_reaches_torch_and_the_heaps(version, door, name, kind):
    torch, heard = follow(version, door)
    getattr(torch._C, name)("a:1")
    assert torch.texts == heard == ["a:1"]
    with pytest.raises(RuntimeError, match="torch refuses it"):
        getattr(torch._C, name)("?")
    with pytest.raises(kind, match="no such setting") as raised:
        getattr(torch._C, name)("no")
    assert type(raised.value) is kind
    assert heard == ["a:1"]


def test_from_2_10_on_the_shim_hears_of_it_by_itself():
    torch, heard = follow("2.10.0", "shim")
    torch._C._accelerator_setAllocatorSettings("a:1")
    assert (torch.texts, heard) == (["a:1"], [])


def test_before_2_10_no_cuda_allocator_looks_at_the_accelerators_settings():
    torch, heard = follow("2.9.1", "shim")
    torch._C._accelerator_setAllocatorSettings("a:1")
    assert (torch.texts, heard) == (["a:1"], [])
