"""How much a process may have: the share of the device, at its bounds and between them."""

from __future__ import annotations

import torch

from checks.limited import is_refused
from checks.registry import MIB, Skip, alone, equal

share = torch.cuda.set_per_process_memory_fraction


@alone
def fraction_is_as_set() -> None:
    """Any share from 0 to 1 is read back as it was set; others raise, and change nothing."""
    if not hasattr(torch.cuda, "get_per_process_memory_fraction"):
        raise Skip("this release does not have it")
    read = torch.cuda.get_per_process_memory_fraction
    equal(read(), 1.0, "the share at the beginning")
    for value in (1.0, 0.0, 0.1, 1 / 3, 0.987654321, 1.0):
        share(value)
        assert abs(read() - value) < 1e-6, f"the share is {read()}, not {value}"
    for wrong, kind in ((1, TypeError), (-0.1, ValueError), (2.0, ValueError)):
        try:
            share(wrong)
        except kind:
            pass
        else:
            raise AssertionError(f"{wrong} was taken")
        equal(read(), 1.0, "the share after a wrong one")


@alone
def fraction_to_the_last() -> None:
    """Within half of the device 49.9 % can be had, and 50 % cannot; kernels run on after that."""
    tensor = torch.zeros(1024, device="cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    share(0.5)
    torch.cuda.reset_peak_memory_stats()
    block = torch.empty(
        int(0.499 * total) - torch.cuda.max_memory_reserved(), dtype=torch.uint8, device="cuda"
    )
    del block
    equal(is_refused(-(-total // 2 // MIB)), True, "that a half is refused")
    equal(bool((tensor.fill_(1) == 1).all()), True, "that a kernel runs")
    share(1.0)


@alone
def no_fraction_at_all() -> None:
    """With a share of 0 nothing more is taken; what is there goes on serving."""
    kept = torch.full((MIB,), 3, dtype=torch.uint8, device="cuda")
    share(0.0)
    equal(is_refused(1024), True, "that a request is refused")
    equal(kept[:1000].cpu().unique().tolist(), [3], "what was there")
    share(1.0)
    equal(is_refused(1024), False, "that it is refused without the limit")
    del kept


@alone
def half_and_half() -> None:
    """Half of the device is given, the other half refused; freed, the first half is given again."""
    total = torch.cuda.get_device_properties(0).total_memory
    half = int(0.5 * total)
    first = torch.empty(half, dtype=torch.uint8, device="cuda")
    equal(is_refused(half // MIB), True, "that a second half is refused")
    del first
    second = torch.empty(half, dtype=torch.uint8, device="cuda")
    second[-1:].fill_(1)
    equal(second[-1].item(), 1, "the last byte")


@alone
def more_than_any_device() -> None:
    """A request far beyond all devices has the usual text, with its size; kernels run on."""
    tensor = torch.zeros(1024, device="cuda")
    for gibibytes in (1 << 12, 1 << 20, 800_000_000):
        text = ""
        try:
            torch.empty(gibibytes << 30, dtype=torch.int8, device="cuda")
        except torch.OutOfMemoryError as error:
            text = str(error)
        begin = f"CUDA out of memory. Tried to allocate {gibibytes}.00 GiB. GPU 0 has a total capa"
        assert text.startswith(begin), f"{gibibytes} GiB: {text[:200]!r}"
    equal(tensor.fill_(1).sum().item(), 1024.0, "a sum afterwards")
