"""Out of memory: the error, its observers, and a process that goes on after it."""

from __future__ import annotations

import contextlib
import re

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


# PyTorch's own, of all releases since 2.2.
SENTENCE = re.compile(
    r"CUDA out of memory\. Tried to allocate [0-9.]+ [KMG]iB\. "
    r"GPU \d+ has a total capacity of [0-9.]+ GiB of which [0-9.]+ [KMG]iB is free\."
)


@check
def out_of_memory_sentence() -> None:
    """The text of OutOfMemoryError begins with PyTorch's own sentence, which programs search."""
    text = exhaust()
    assert SENTENCE.match(text), text


@check
def out_of_memory_exabytes() -> None:
    """A request of 1 EiB and more is OutOfMemoryError too, with PyTorch's text for it."""
    for size in (1 << 60, (1 << 60) + 1, 1 << 62):
        text = ""
        try:
            torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            text = str(error)
        assert "Tried to allocate more than 1EB memory." in text, f"{size} bytes: {text!r}"


@alone
def out_of_memory_observer() -> None:
    """Observers hear of it, once: the device, what is wanted of it, what it may hold, its rest."""
    heard: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: heard.append(numbers))
    total = torch.cuda.mem_get_info()[1]
    requested = int(1.5 * torch.cuda.get_device_properties(0).total_memory)
    for fraction in (1.0, 0.5):
        torch.cuda.set_per_process_memory_fraction(fraction)
        ooms = torch.cuda.memory_stats()["num_ooms"]
        heard.clear()
        exhaust()
        equal(torch.cuda.memory_stats()["num_ooms"], ooms + 1, "num_ooms")
        equal(len(heard), 1, "the times that it was called")
        device, wanted, limit, free = heard[0]
        equal(device, torch.cuda.current_device(), "the device")
        # Segments are rounded up.
        assert requested - MIB <= wanted <= requested + 32 * MIB, f"{wanted} for {requested}"
        assert abs(limit - fraction * total) < MIB, f"the limit is {limit} of {total}"
        assert 0 <= free <= total, f"{free} bytes are free of {total}"
    torch.cuda.set_per_process_memory_fraction(1.0)
