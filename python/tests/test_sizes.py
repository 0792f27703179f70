"""Sizes as people write them."""

import pytest

from girih import GirihError, _sizes


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (5, 5),
        ("123B", 123),
        ("60GiB", 60 << 30),
        ("12GB", 12 << 30),
        ("12g", 12 << 30),
        ("1.5 MB", 3 << 19),
        (" 2tib ", 2 << 40),
        (".5k", 512),
    ],
)
def test_sizes_are_read_as_the_command_reads_them(size, count):
    assert _sizes.parse("gpu_budget", size) == count


@pytest.mark.parametrize("size", [0, -1, "60", "GiB", "6 0GiB", "0GiB", True, "1e3B", None])
def test_what_is_no_size_is_refused_with_an_example(size):
    with pytest.raises(GirihError, match=r"60GiB.*gpu_budget is "):
        _sizes.parse("gpu_budget", size)


def test_a_size_that_is_refused_is_shown_as_it_was_written():
    for size in ["0GiB", "0.1B", "9999999TiB"]:
        with pytest.raises(GirihError, match=f"gpu_budget is `{size}`"):
            _sizes.parse("gpu_budget", size)
