"""The statistics and the snapshot, held against each other: both tell of the same blocks."""

from __future__ import annotations

import collections
import random

import torch

from checks.registry import MIB, Skip, alone, blank, check, equal


def counted(device: int) -> dict[str, int]:
    """What the statistics of a device should say now, counted in the snapshot."""
    seen: collections.Counter[str] = collections.Counter()
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] != device:
            continue
        kind, is_paged = f"{segment['segment_type']}_pool", segment["is_expandable"]
        blocks = segment["blocks"]
        active = [block for block in blocks if block["state"].startswith("active")]
        equal(sum(block["size"] for block in active), segment["active_size"], "active_size")
        requested = sum(block["requested_size"] for block in active)
        equal(requested, segment["requested_size"], "requested_size")
        live = [block for block in active if block["state"] == "active_allocated"]
        equal(sum(block["size"] for block in live), segment["allocated_size"], "allocated_size")
        numbers = {
            "allocation": len(live),
            "active": len(active),
            "allocated_bytes": segment["allocated_size"],
            "active_bytes": segment["active_size"],
            "requested_bytes": segment["requested_size"],
            "reserved_bytes": segment["total_size"],
        }
        if not is_paged:
            # Of pages neither is counted.
            numbers["segment"] = 1
            idle = [block["size"] for block in blocks if block["state"] == "inactive"]
            if len(blocks) > 1:
                numbers |= {"inactive_split": len(idle), "inactive_split_bytes": sum(idle)}
        for name, number in numbers.items():
            seen[f"{name}.all.current"] += number
            # Pages of small requests that serve a large one meanwhile are shown where they serve.
            if name != "reserved_bytes":
                seen[f"{name}.{kind}.current"] += number
    return dict(seen)


def accounts_agree(device: int = 0) -> None:
    """Fails if statistics and snapshot of a device differ."""
    stats = torch.cuda.memory_stats(device)
    for name, number in counted(device).items():
        equal(stats[name], number, name)


def requests(seed: int, device: int, turns: int) -> None:
    """Tensors of all sizes that come and go, on two streams and in a pool; looks after each."""
    draw = random.Random(seed)
    held: list[torch.Tensor] = []
    with torch.cuda.device(device):
        side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
        for turn in range(turns):
            size = draw.choice((1, 700, 5_000, MIB // 2, 3 * MIB, 12 * MIB, 45 * MIB))
            way = draw.randrange(4)
            if way == 0 and held:
                tensor = held.pop(draw.randrange(len(held)))
                if draw.randrange(2):
                    tensor.record_stream(side)
                del tensor
            elif way == 1:
                with torch.cuda.use_mem_pool(pool):
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            elif way == 2:
                with torch.cuda.stream(side):
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            else:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            if turn % 29 == 28:
                torch.cuda.empty_cache()
            accounts_agree(device)
        while held:
            held.pop(draw.randrange(len(held)))
            accounts_agree(device)


@alone
def accounts_of_many_requests() -> None:
    """Statistics and snapshot agree after each of 250 requests, frees and emptyings."""
    requests(7, 0, 250)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    accounts_agree()
    equal(torch.cuda.memory_allocated(), 0, "bytes in use when all is freed")


@alone
def accounts_of_large_tensors_in_holes() -> None:
    """They agree, too, where a tensor is larger than each hole, and holes together would do."""
    blocks = [blank(40) for _ in range(40)]
    kept = blocks[1::2]
    del blocks
    accounts_agree()
    for mebibytes in (790, 500, 333):
        large = blank(mebibytes)
        accounts_agree()
        small = [blank(3) for _ in range(20)]
        accounts_agree()
        del large
        accounts_agree()
        del small
    del kept
    torch.cuda.empty_cache()
    accounts_agree()


@alone
def accounts_of_two_devices() -> None:
    """They agree for each of two devices, whose requests take turns."""
    if torch.cuda.device_count() < 2:
        raise Skip("there is one device")
    for seed in range(4):
        for device in (0, 1):
            requests(seed, device, 40)
            accounts_agree(1 - device)


@alone
def emptying_counts_one_wait() -> None:
    """empty_cache counts as one wait for all streams; what the device gave and got is counted."""
    before = torch.cuda.memory_stats()
    block = blank(100)
    during = torch.cuda.memory_stats()
    assert during["num_device_alloc"] > before["num_device_alloc"], "nothing counts as taken"
    del block
    for turn in range(3):
        waits = torch.cuda.memory_stats()["num_sync_all_streams"]
        torch.cuda.empty_cache()
        stats = torch.cuda.memory_stats()
        equal(stats["num_sync_all_streams"], waits + 1, f"num_sync_all_streams, time {turn}")
    assert stats["num_device_free"] > during["num_device_free"], "nothing counts as given back"
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    for name in ("num_sync_all_streams", "num_device_alloc", "num_device_free"):
        equal(stats[name], 0, f"{name} after the reset")


@check
def active_bytes() -> None:
    """256 floats are 1,024 active bytes as long as they live, and as many freed ones afterwards."""
    before, held = torch.cuda.memory_stats(), torch.cuda.memory_reserved()
    tensor = torch.zeros(256, device="cuda")
    during = torch.cuda.memory_stats()
    for name, change in (("active_bytes.all", 1024), ("active.all", 1), ("allocation.all", 1)):
        equal(during[f"{name}.current"] - before[f"{name}.current"], change, f"{name}.current")
        equal(during[f"{name}.freed"] - before[f"{name}.freed"], 0, f"{name}.freed")
    del tensor
    torch.cuda.empty_cache()
    after = torch.cuda.memory_stats()
    equal(after["active_bytes.all.freed"] - before["active_bytes.all.freed"], 1024, "freed bytes")
    equal(after["active_bytes.all.current"], before["active_bytes.all.current"], "active bytes")
    torch.cuda.reset_peak_memory_stats()
    equal(torch.cuda.max_memory_reserved(), held, "the peak of what is reserved, after the reset")


@check
def matrices_have_a_workspace() -> None:
    """cuBLAS's workspace is memory of PyTorch's: it is counted, and gone when it is cleared."""
    if not hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        raise Skip("this release does not have it")
    torch._C._cuda_clearCublasWorkspaces()
    matrix = torch.randn(7, 7, device="cuda")
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        product = matrix @ matrix
        del product
        held = torch.cuda.memory_allocated() - before
        assert MIB <= held <= 128 * MIB, f"{held} bytes of workspace"
        torch._C._cuda_clearCublasWorkspaces()
        equal(torch.cuda.memory_allocated(), before, "bytes in use when it is cleared")


@check
def memory_of_the_device_in_use() -> None:
    """torch.cuda.device_memory_used, which asks NVML, rises by about what is taken."""
    try:
        before = torch.cuda.device_memory_used()
    except (AttributeError, ModuleNotFoundError) as error:
        raise Skip(f"it cannot be asked: {error}") from error
    block = blank(2048).fill_(1)
    torch.cuda.synchronize()
    rise = torch.cuda.device_memory_used() - before
    # Others may use the device too.
    assert 1024 * MIB <= rise <= 8192 * MIB, f"it rose by {rise} bytes for {2048 * MIB}"
    del block
