"""Memory that is held: given back, limited, asked for by the byte or by address, and pinned."""

from __future__ import annotations

import torch

from checks.registry import MIB, alone, blank, check, equal


@check
def empty_cache() -> None:
    """empty_cache gives free memory back to the device."""
    block = blank(512)
    del block
    torch.cuda.synchronize()
    reserved, (free, _) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    after, (free_after, _) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    assert after <= reserved, f"reserved {reserved}, then {after}"
    # In the mode profile nothing was held to begin with.
    # Others may use the device too: a little is left to them.
    returned = free_after - free
    assert returned >= reserved - after - 32 * MIB, f"{returned} bytes came back to the device"
    held = torch.cuda.memory_stats()["inactive_split_bytes.all.current"]
    slack = after - torch.cuda.memory_allocated() - held
    assert slack <= 64 * MIB, f"{slack} bytes are held still"


@check
def mem_get_info() -> None:
    """mem_get_info is the driver's word, and falls by what is reserved."""
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    reserved = torch.cuda.memory_reserved()
    block = blank(1024)
    taken = torch.cuda.memory_reserved() - reserved
    fallen = free - torch.cuda.mem_get_info()[0]
    # Others may use the device too; a 64th is left to them.
    assert abs(fallen - taken) <= max(taken // 64, 32 * MIB), f"fell by {fallen}, taken {taken}"
    del block


@alone
def memory_fraction() -> None:
    """set_per_process_memory_fraction limits, and get_ gives it back."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.05)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        found = torch.cuda.get_per_process_memory_fraction()
        assert abs(found - 0.05) < 1e-6, f"the fraction is {found}"
    try:
        blank(0.06 * total / MIB)
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("6 % of the memory were given within a limit of 5 %")
    kept = blank(0.02 * total / MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = blank(0.06 * total / MIB)
    del kept, more


@check
def size_zero() -> None:
    """Empty tensors cost nothing, and can be made, resized and freed."""
    before = torch.cuda.memory_allocated()
    empties = [torch.empty(0, device="cuda") for _ in range(100)]
    equal(torch.cuda.memory_allocated(), before, "memory_allocated")
    equal(empties[0].data_ptr(), 0, "the address")
    grown = empties[0].resize_(1000)
    grown.fill_(1)
    equal(grown.sum().item(), 1000, "the sum")


@check
def raw_interface() -> None:
    """caching_allocator_alloc and _delete give and take plain addresses."""
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(5 * MIB)
    equal(torch.cuda.memory_allocated(), before + 5 * MIB, "memory_allocated")
    torch.cuda.caching_allocator_delete(address)
    equal(torch.cuda.memory_allocated(), before, "memory_allocated after the free")


@check
def pinned_memory() -> None:
    """Pinned host memory and copies in the background go on working."""
    host = torch.arange(MIB, dtype=torch.int32).pin_memory()
    assert host.is_pinned()
    there = host.to("cuda", non_blocking=True)
    back = there.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, host)
