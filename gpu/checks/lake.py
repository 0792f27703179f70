"""Stitched memory: what lies in holes, under addresses of its own; and memory in one handle.

The checks hold for every allocator. Under the modes `stitch` and `auto` the large tensors here are
views of several holes, which `torch.cuda.memory_reserved` shows: nothing more is taken for them.
What needs one piece of memory, and one handle for it, has it inside `girih.one_handle()`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import torch

from checks.processes import share
from checks.registry import MIB, Skip, alone, blank, equal, girih_mode


def holes(count: int, mebibytes: int, device: str | int = "cuda") -> list[torch.Tensor]:
    """Holes of so many MiB, as many, between blocks that are kept."""
    blocks = [blank(mebibytes, device) for _ in range(2 * count)]
    return blocks[1::2]


@alone
def stitched_memory() -> None:
    """A tensor over several holes has every byte to itself, beside what is in use between them."""
    kept = holes(20, 40)
    for at, block in enumerate(kept):
        block.fill_(at + 1)
    reserved = torch.cuda.memory_reserved()
    for round_ in range(3):
        large = blank(790)
        large.fill_(100 + round_)
        # The holes have their own addresses still, for what is smaller.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            wrong = torch.count_nonzero(large != 100 + round_)
        large.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        equal(wrong.item(), 0, "elements of the large tensor that were overwritten")
        del large
        small = [blank(39) for _ in range(15)]
        for block in small:
            block.fill_(77)
        equal(sum(int(torch.count_nonzero(it != 77)) for it in small), 0, "elements overwritten")
        del small
    for at, block in enumerate(kept):
        equal(int(torch.count_nonzero(block != at + 1)), 0, f"elements of block {at} overwritten")
    more = (torch.cuda.memory_reserved() - reserved) // MIB
    print(f"  {more} MiB more were taken for 790 MiB where 800 lay in holes")


def steps() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What one step runs in: Girih's, where it serves, or nothing."""
    if girih_mode() is None:
        return contextlib.nullcontext
    return _girih().step  # type: ignore[no-any-return]


@alone
def views_with_other_pages() -> None:
    """A large tensor of another size in each step, over other holes, has every byte to itself."""
    kept = holes(40, 40)
    for at, block in enumerate(kept):
        block.fill_(at + 1)
    step, calls = steps(), []
    for round_ in range(24):
        with step():
            # Some of the holes are in use, others in each step.
            inside = [blank(30 + round_ % 7) for _ in range(3 + round_ % 5)]
            for block in inside:
                block.fill_(77)
            large = blank(900 + 11 * (round_ % 6))
            large.fill_(100 + round_)
            del inside[round_ % 3]
            small = blank(35)
            small.fill_(78)
            wrong = torch.count_nonzero(large != 100 + round_) + torch.count_nonzero(small != 78)
            for block in inside:
                wrong += torch.count_nonzero(block != 77)
            equal(int(wrong), 0, "elements that were overwritten")
            del large, small, inside, wrong
        calls.append(sum(_girih().stats(0)["calls"].values()) if girih_mode() else 0)
    for at, block in enumerate(kept):
        equal(int(torch.count_nonzero(block != at + 1)), 0, f"elements of block {at} overwritten")
    print(f"  {calls[-1] - calls[11]} driver calls in the last twelve steps")


@alone
def ipc_of_stitched_memory() -> None:
    """A tensor over several holes goes to another process and back."""
    kept = holes(20, 40)
    share(torch.ones(790 * MIB // 4, device="cuda"), 790 * MIB // 4)
    del kept


# Modes whose large tensors lie in mapped memory, for which the driver has no handle.
MAPPED = ("expandable", "stitch", "gmlake", "auto", "plan")


def _girih() -> Any:
    """The package; without it the check is skipped."""
    try:
        import girih
    except ImportError as error:
        raise Skip("Girih is not installed") from error
    return girih


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def classic_handle(tensor: torch.Tensor) -> tuple[bytes, int] | None:
    """The driver's handle for the memory of a tensor (`cudaIpcGetMemHandle`), and where the tensor
    begins in it; None if the driver has none."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, base = _IpcHandle(), ctypes.c_uint64()
    address = ctypes.c_uint64(tensor.data_ptr())
    if driver.cuIpcGetMemHandle(ctypes.byref(handle), address) != 0:
        return None
    found = driver.cuMemGetAddressRange_v2(ctypes.byref(base), None, address)
    equal(found, 0, "the result of cuMemGetAddressRange")
    return bytes(handle.bytes), tensor.data_ptr() - base.value


def _classic_reader(handle: bytes, offset: int, count: int, answers: Any) -> None:
    """The other process: knows nothing but the driver's handle, reads the memory, writes to it."""
    torch.zeros(1, device="cuda")  # its context is current from here on
    driver = ctypes.CDLL("libcuda.so.1")
    base, opened = ctypes.c_uint64(), _IpcHandle((ctypes.c_ubyte * 64)(*handle))
    equal(driver.cuIpcOpenMemHandle_v2(ctypes.byref(base), opened, 1), 0, "the result of opening")
    address, host = ctypes.c_uint64(base.value + offset), (ctypes.c_int32 * count)()
    equal(driver.cuMemcpyDtoH_v2(host, address, ctypes.c_size_t(4 * count)), 0, "that of reading")
    answers.put(torch.frombuffer(host, dtype=torch.int32).unique().tolist())
    written = driver.cuMemsetD32_v2(address, ctypes.c_uint(3), ctypes.c_size_t(count))
    equal((written, driver.cuCtxSynchronize()), (0, 0), "the results of writing")
    equal(driver.cuIpcCloseMemHandle(base), 0, "the result of closing")


@alone
def one_handle_over_classic_ipc() -> None:
    """Memory in one handle goes to another process by the driver's own handle, and by torch's."""
    import torch.multiprocessing as mp

    girih = _girih()
    kept = holes(20, 40)
    large = torch.ones(790 * MIB // 4, dtype=torch.int32, device="cuda")
    if girih.is_enabled() and girih.stats()["mode"] in MAPPED:
        equal(classic_handle(large), None, "the handle of mapped memory")
    count = 300 * MIB // 4
    with girih.one_handle():
        tensor = torch.full((count,), 7, dtype=torch.int32, device="cuda")
    found = classic_handle(tensor)
    assert found is not None, "the driver has no handle for memory in one handle"
    torch.cuda.synchronize()
    context = mp.get_context("spawn")
    answers = context.Queue()
    reader = context.Process(target=_classic_reader, args=(*found, count, answers))
    reader.start()
    equal(answers.get(timeout=120), [7], "what the other process read")
    reader.join(timeout=60)
    equal(reader.exitcode, 0, "the exit status of the other process")
    assert bool((tensor == 3).all()), "what the other process wrote is not here"
    share(tensor, 3 * count)
    with girih.one_handle():
        other = blank(200)
    reserved = torch.cuda.memory_reserved()
    del other
    torch.cuda.empty_cache()
    given = reserved - torch.cuda.memory_reserved()
    assert given >= 200 * MIB, f"{given} bytes went back when the cache was emptied"
    del kept, large


def _join(rank: int, port: int) -> Any:
    """Makes this process one of two."""
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)
    return dist


def _reduce(rank: int, port: int, answers: object) -> None:
    """One of two processes: adds up tensors over holes with NCCL."""
    dist = _join(rank, port)
    kept = holes(20, 40)
    large = torch.full((790 * MIB // 4,), float(rank + 1), device="cuda")
    gathered = torch.empty(2 * 99 * MIB, device="cuda")
    for _ in range(3):
        part = large.clone()
        dist.all_reduce(part)
        assert bool((part == 3.0).all()), "the sum is wrong"
        dist.all_gather_into_tensor(gathered, part[: 99 * MIB].contiguous())
        assert bool((gathered == 3.0).all()), "what was gathered is wrong"
        del part
    del kept
    dist.destroy_process_group()
    answers.put(rank)  # type: ignore[attr-defined]


def _reduce_registered(rank: int, port: int, answers: object) -> None:
    """One of two processes: adds up tensors that NCCL knows, in memory in one handle."""
    girih, dist = _girih(), _join(rank, port)
    kept = holes(20, 40)
    with girih.one_handle() as pool:
        buffer = torch.empty(99 * MIB, device="cuda")
    if pool is None:  # torch's own allocator: the same with a pool of its own
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            buffer = torch.empty(99 * MIB, device="cuda")
    dist.all_reduce(torch.ones(1, device="cuda"))  # makes the communicator
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    knows = hasattr(backend, "register_mem_pool")
    if knows:
        backend.register_mem_pool(pool)
    for _ in range(3):
        buffer.fill_(rank + 1)
        dist.all_reduce(buffer)
        assert bool((buffer == 3.0).all()), "the sum is wrong"
    if knows:
        backend.deregister_mem_pool(pool)
    del buffer, kept
    torch.cuda.empty_cache()
    dist.destroy_process_group()
    answers.put(rank)  # type: ignore[attr-defined]


@alone
def nccl_on_stitched_memory() -> None:
    """Collectives of NCCL read and write tensors over several holes."""
    _on_two_devices(_reduce)


@alone
def nccl_registers_one_handle() -> None:
    """NCCL registers memory in one handle, where torch can ask for it, and works on it."""
    _girih()
    _on_two_devices(_reduce_registered)


def _on_two_devices(work: Any) -> None:
    """Runs a function in two processes, each with a device of its own."""
    import socket

    import torch.multiprocessing as mp

    if torch.cuda.device_count() < 2:
        raise Skip("there is one device")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.Queue()
    workers = [context.Process(target=work, args=(rank, port, answers)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=200)
        if worker.is_alive():
            worker.terminate()
    equal([worker.exitcode for worker in workers], [0, 0], "the exit statuses")
