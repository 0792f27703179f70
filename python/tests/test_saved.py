"""Autograd's saved tensors, packed and unpacked; other tensors stand in for torch's."""

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")

from girih import _native, _settings


class Tensor:
    """As much of a tensor as the hooks look at where nothing is swapped."""

    is_cuda = False
    is_leaf = False
    dtype = "float32"
    shape = (2, 3)

    def __init__(self, version):
        self.versions = version

    @property
    def _version(self):
        return self.versions[0]

    def detach(self):
        """Shares what counts the changes, as torch's does."""
        return Tensor(self.versions)


def test_what_was_packed_comes_back_detached():
    tensor = Tensor([3])
    saved = _native.pack(tensor)
    found = _native.unpack(saved)
    assert found is not tensor, "the tensor itself would keep its own graph alive"
    assert _native.unpack(saved) is found, "a second backward pass gets the same"


def test_a_leaf_is_kept_itself_so_that_who_exchanges_its_data_finds_it_exchanged():
    tensor = Tensor([0])
    tensor.is_leaf = True
    assert _native.unpack(_native.pack(tensor)) is tensor


def test_a_change_in_place_after_saving_is_an_error_that_names_the_tensor():
    tensor = Tensor([0])
    saved = _native.pack(tensor)
    tensor.versions[0] = 1
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*\(2, 3\)") as raised:
        _native.unpack(saved)
    assert "is at version 1; expected version 0" in str(raised.value)


def test_budgets_reach_the_heaps_as_bytes():
    settings = _settings.make("stitch", options={"gpu_budget": "1GiB", "host_budget": None})
    assert settings.options == {"gpu_budget": 1 << 30}
    _native.check_settings(settings.for_heaps(key="", torch="2.11.0"))


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("native", {"gpu_budget": 1 << 30}, "use the mode `auto`, `plan` or `stitch`"),
        ("native", {"host_budget": 1 << 30}, "use the mode `auto`, `plan` or `stitch`"),
        ("auto", {"gpu_budget": 1 << 30, "swap": "off"}, "leave out `gpu_budget` or `swap=off`"),
        ("auto", {"swap": "on"}, "unknown variant `on`, expected `edge` or `off`"),
    ],
)
def test_budgets_that_mean_nothing_are_refused(mode, options, said):
    settings = _settings.make(mode, options=options)
    with pytest.raises(ValueError, match=said):
        _native.check_settings(settings.for_heaps(key="", torch="2.11.0"))
