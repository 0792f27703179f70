"""Out of memory: the error, its observers, and a process that goes on after it."""

from __future__ import annotations

import contextlib

import torch

from checks.registry import MIB, alone, blank, check, equal, train


def exhaust() -> str:
    """Asks for more than there is. Gives the text of the error."""
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        blank(1.5 * total / MIB)
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("more memory was given than there is")


@check
def out_of_memory_is_caught() -> None:
    """OutOfMemoryError is raised with a text that has numbers, is counted, and training goes on."""
    expected = train()
    ooms = torch.cuda.memory_stats()["num_ooms"]
    text = exhaust()
    assert "out of memory" in text.lower(), text
    assert any(unit in text for unit in ("GiB", "MiB", "bytes")), text
    equal(torch.cuda.memory_stats()["num_ooms"], ooms + 1, "num_ooms")
    equal(train(), expected, "the loss after it")


@alone
def out_of_memory_by_degrees() -> None:
    """Memory is filled block by block to the last, freed, and filled again as far."""
    counts = []
    for _ in range(2):
        blocks: list[torch.Tensor] = []
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                blocks.append(blank(512))
        counts.append(len(blocks))
        blocks.clear()
        equal(torch.cuda.memory_allocated(), 0, "memory_allocated after the free")
    assert counts[0] > 1
    # What the first round left in the driver may cost one block.
    assert abs(counts[0] - counts[1]) <= 1, f"blocks of 512 MiB: {counts}"


@check
def out_of_memory_observer() -> None:
    """Observers hear of it: the device, the request, what is allocated and what is free."""
    heard: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: heard.append(numbers))
    exhaust()
    equal(len(heard), 1, "the times that it was called")
    device, requested, limit, free = heard[0]
    equal(device, torch.cuda.current_device(), "the device")
    assert requested >= torch.cuda.get_device_properties(0).total_memory
    assert limit >= 0
    assert free >= 0
