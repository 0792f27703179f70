"""Everything that PyTorch says and does about GPU memory, checked one by one.

    python gpu/parity.py                                    torch's own allocator
    python -m girih run --mode expandable gpu/parity.py     Girih
    python gpu/parity.py [--list] [NAME ...]                some checks

A line for each check: PASS, FAIL with the reason, or SKIP with what is missing. Exit status 1 if
anything failed. Checks that could leave CUDA broken run in a process of their own, which this
script starts as itself; Girih reaches those through the environment.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

MIB = 1 << 20
CHILD_SECONDS_MAX = 300


class Skip(Exception):
    """The check needs something that is not here."""


Check = Callable[[], None]
CHECKS: dict[str, Check] = {}
ALONE: set[str] = set()


def check(function: Check) -> Check:
    """A check that runs in this process."""
    CHECKS[function.__name__] = function
    return function


def alone(function: Check) -> Check:
    """A check that runs in a process of its own."""
    ALONE.add(function.__name__)
    return check(function)


def blank(mebibytes: float, device: str | int = "cuda") -> torch.Tensor:
    """A tensor of that many MiB, not written to."""
    return torch.empty(int(mebibytes * MIB), dtype=torch.uint8, device=device)


def clean() -> None:
    """Back to a process that holds nothing."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def equal(found: object, expected: object, what: str) -> None:
    """Fails with both values."""
    assert found == expected, f"{what} is {found}, not {expected}"


def train(steps: int = 3, device: str = "cuda") -> float:
    """A small model, a few steps. Gives the last loss."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 512, device=device)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


# ---- statistics ----


@check
def memory_stats_fields() -> None:
    """memory_stats() has every field, and the counters add up."""
    before = torch.cuda.memory_stats()
    block = blank(3)
    stats = torch.cuda.memory_stats()
    for name in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ):
        for pool in ("all", "small_pool", "large_pool"):
            current, peak, allocated, freed = (
                stats[f"{name}.{pool}.{part}"] for part in ("current", "peak", "allocated", "freed")
            )
            assert peak >= current >= 0, f"{name}.{pool}: peak {peak}, current {current}"
            change = current - before[f"{name}.{pool}.current"]
            came = allocated - before[f"{name}.{pool}.allocated"]
            went = freed - before[f"{name}.{pool}.freed"]
            equal(came - went, change, f"{name}.{pool}: what came less what went")
    for name in (
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "oversize_allocations.current",
        "oversize_segments.current",
        "max_split_size",
    ):
        assert name in stats, f"{name} is missing"
    assert stats["num_device_alloc"] > 0
    del block


@check
def allocated_and_peaks() -> None:
    """memory_allocated and its peak follow tensors to the byte."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    first, second = blank(3), blank(0.5)
    expected = before + 3 * MIB + MIB // 2
    equal(torch.cuda.memory_allocated(), expected, "memory_allocated")
    del first
    equal(torch.cuda.memory_allocated(), expected - 3 * MIB, "memory_allocated after a free")
    equal(torch.cuda.max_memory_allocated(), expected, "max_memory_allocated")
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del second


@check
def resets() -> None:
    """reset_peak_memory_stats and reset_accumulated_memory_stats do that."""
    block = blank(64)
    del block
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    equal(
        torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), "the peak after the reset"
    )
    equal(stats["num_ooms"], 0, "num_ooms after the reset")
    freed = stats["allocated_bytes.all.freed"]
    assert freed == 0, f"{freed} bytes count as freed after the reset"


@check
def requested_bytes() -> None:
    """requested_bytes counts what was asked for, allocated_bytes what was granted."""
    before = torch.cuda.memory_stats()
    block = torch.empty(1000, dtype=torch.uint8, device="cuda")
    after = torch.cuda.memory_stats()
    name = "requested_bytes.all.current"
    equal(after[name] - before[name], 1000, "requested")
    granted = torch.cuda.memory_allocated() - before["allocated_bytes.all.current"]
    assert granted >= 1000, f"granted {granted}"
    del block


@check
def memory_summary() -> None:
    """memory_summary() is a table, also of another kind than the default."""
    for abbreviated in (False, True):
        assert "Allocated memory" in torch.cuda.memory_summary(abbreviated=abbreviated)


@check
def memory_snapshot() -> None:
    """memory_snapshot() shows every live tensor in a segment whose blocks tile it."""
    block = blank(5)
    segments = torch.cuda.memory_snapshot()
    total, found = 0, False
    for segment in segments:
        address = segment["address"]
        for part in segment["blocks"]:
            equal(part["address"], address, "the address of a block")
            address += part["size"]
            found |= part["address"] == block.data_ptr() and part["state"] == "active_allocated"
        equal(address, segment["address"] + segment["total_size"], "the end of a segment's blocks")
        total += segment["total_size"]
    assert found, "the tensor is in no segment"
    equal(total, torch.cuda.memory_reserved(), "bytes of the segments")


@check
def memory_history() -> None:
    """_record_memory_history and _dump_snapshot: a pickle with events, times and call stacks."""
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        block = blank(7)
        address = block.data_ptr()
        del block
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            torch.cuda.memory._dump_snapshot(str(path))
            snapshot = pickle.loads(path.read_bytes())
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    events = [event for event in snapshot["device_traces"][0] if event["addr"] == address]
    actions = [event["action"] for event in events if not event["action"].startswith("segment")]
    equal(actions, ["alloc", "free_requested", "free_completed"], "the tensor's events")
    alloc = next(event for event in events if event["action"] == "alloc")
    equal(alloc["size"], 7 * MIB, "the recorded size")
    assert any(frame["name"] == "memory_history" for frame in alloc["frames"]), "no call stack"
    assert abs(alloc["time_us"] / 1e6 - time.time()) < 600, f"time_us is {alloc['time_us']}"
    assert "segments" in snapshot
    assert "allocator_settings" in snapshot


@check
def accelerator() -> None:
    """torch.accelerator's memory functions give the same numbers."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not hasattr(accelerator, "memory_allocated"):
        raise Skip("torch.accelerator.memory_* came with torch 2.9")
    block = blank(6)
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
    ):
        equal(getattr(accelerator, name)(), getattr(torch.cuda, name)(), name)
    equal(
        accelerator.memory_stats()["allocated_bytes.all.current"],
        torch.cuda.memory_stats()["allocated_bytes.all.current"],
        "memory_stats",
    )
    del block
    accelerator.reset_peak_memory_stats()
    accelerator.empty_cache()
    equal(
        torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), "the peak after the reset"
    )


@check
def profiler() -> None:
    """torch.profiler with profile_memory sees allocations on the GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        block = blank(9) + 1
        torch.cuda.synchronize()
    del block
    averages = profile.key_averages()
    names = ("device_memory_usage", "cuda_memory_usage")
    most = max(abs(getattr(event, name, 0)) for event in averages for name in names)
    assert most >= 9 * MIB, f"the largest change that it saw is {most} bytes"


# ---- memory held ----


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


# ---- out of memory ----


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


# ---- streams, graphs, pools ----


@check
def record_stream() -> None:
    """A tensor that a side stream reads is not given away while it reads."""
    side = torch.cuda.Stream()
    for _ in range(10):
        source = torch.full((8 * MIB,), 7, dtype=torch.uint8, device="cuda")
        copy = torch.empty_like(source)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copy.copy_(source)
        source.record_stream(side)
        del source
        # The same size again, on the stream that the tensor was made on, and overwritten.
        thief = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        equal(copy.min().item(), 7, "the smallest byte that was copied")
        del thief, copy


@check
def streams_do_not_mix() -> None:
    """Memory freed on one stream is safe while another still computes in its own."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for value, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            for _ in range(20):
                block = torch.full((MIB,), value, dtype=torch.int32, device="cuda")
                total = block.sum()
                del block
            results.append((total, value * MIB))
    torch.cuda.synchronize()
    for total, expected in results:
        equal(total.item(), expected, "a sum")


def graph_of(inputs: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A captured computation with memory of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (inputs * 2).relu() @ inputs
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = (inputs * 2).relu() @ inputs
    return graph, output


@alone
def cuda_graph() -> None:
    """torch.cuda.graph captures and replays; nobody gets its memory while it lives."""
    inputs = torch.randn(512, 512, device="cuda")
    graph, output = graph_of(inputs)
    held = torch.cuda.memory_reserved()
    for _ in range(5):
        inputs.copy_(torch.randn(512, 512, device="cuda"))
        # Whoever takes the graph's memory now would be overwritten by the replay.
        canaries = [torch.full((MIB,), 5, dtype=torch.int32, device="cuda") for _ in range(8)]
        graph.replay()
        expected = (inputs * 2).relu() @ inputs
        torch.cuda.synchronize()
        assert torch.allclose(output, expected, rtol=1e-3, atol=1e-3), "the replay is wrong"
        assert all(bool((canary == 5).all()) for canary in canaries), "a tensor was overwritten"
        del canaries
    assert held > 0
    del graph, output
    gc.collect()
    torch.cuda.empty_cache()


@alone
def graphs_share_a_pool() -> None:
    """Two graphs captured in one pool replay one after the other."""
    inputs = torch.randn(256, 256, device="cuda")
    torch.cuda.synchronize()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = inputs * 3
    with torch.cuda.graph(second, pool=first.pool()):
        output = middle + 1
    inputs.fill_(2)
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    equal(output.unique().tolist(), [7.0], "the output")


@alone
def graphed_training() -> None:
    """make_graphed_callables: forward and backward as graphs."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    sample = torch.randn(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(3):
        graphed(torch.randn(8, 64, device="cuda", requires_grad=True)).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@alone
def mem_pool() -> None:
    """MemPool and use_mem_pool: what is made inside is in the pool's own segments."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = blank(4)
    outside = blank(4)
    owned = {segment["address"]: segment["total_size"] for segment in pool.snapshot()}

    def is_inside(tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(start <= address < start + size for start, size in owned.items())

    assert is_inside(inside), "the tensor made inside is elsewhere"
    assert not is_inside(outside), "the tensor made outside is inside"
    del inside, outside, pool
    gc.collect()
    torch.cuda.empty_cache()
    left = {segment["address"] for segment in torch.cuda.memory_snapshot()}
    assert not left & set(owned), "segments outlive their pool"


@alone
def mem_pool_reuses() -> None:
    """A pool serves again from what was freed in it."""
    pool = torch.cuda.MemPool()
    addresses = set()
    for _ in range(5):
        with torch.cuda.use_mem_pool(pool):
            block = blank(16)
        addresses.add(block.data_ptr())
        del block
    equal(len(addresses), 1, "the number of places")


def compiled(mode: str | None) -> None:
    """Trains a compiled model and an eager one alike."""
    if os.environ.get("GIRIH_PARITY_NO_COMPILE"):
        raise Skip("GIRIH_PARITY_NO_COMPILE is set")
    results = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128)
        ).cuda()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        if is_compiled:
            model = torch.compile(model, mode=mode)
        inputs = torch.randn(32, 128, device="cuda")
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(loss.item())
    assert abs(results[0] - results[1]) < 1e-3, f"the losses are {results}"


@alone
def compile_default() -> None:
    """torch.compile in its default mode."""
    compiled(None)


@alone
def compile_reduce_overhead() -> None:
    """torch.compile with mode="reduce-overhead": graph trees, with checkpoints of their pool."""
    compiled("reduce-overhead")


@check
def cudnn_benchmark() -> None:
    """cudnn.benchmark asks how much workspace there could be, and finds an algorithm."""
    if not torch.backends.cudnn.is_available():
        raise Skip("there is no cuDNN")
    torch.backends.cudnn.benchmark = True
    try:
        convolution = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
        output = convolution(torch.randn(4, 16, 64, 64, device="cuda"))
        output.sum().backward()
        equal(tuple(output.shape), (4, 32, 64, 64), "the shape")
    finally:
        torch.backends.cudnn.benchmark = False


# ---- processes, devices, threads ----


def _ipc_reader(queue: Any, answers: Any) -> None:
    """The other process: reads a tensor that it was sent, and writes to it."""
    tensor = queue.get()
    answers.put((tensor.device.type, tensor.sum().item()))
    tensor.fill_(3)
    torch.cuda.synchronize()
    answers.put("written")
    queue.get()  # lives until it is let go


def share(tensor: torch.Tensor, expected: float) -> None:
    """Sends a tensor to another process, which must see it and write to it."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=_ipc_reader, args=(queue, answers))
    process.start()
    try:
        queue.put(tensor)
        equal(answers.get(timeout=120), ("cuda", expected), "what the other process sees")
        answers.get(timeout=120)
        assert bool((tensor == 3).all()), "what the other process wrote is not here"
    finally:
        queue.put(None)
        process.join(timeout=60)
        if process.is_alive():
            process.terminate()
    equal(process.exitcode, 0, "the exit status of the other process")


@alone
def ipc() -> None:
    """CUDA tensors go to another process and back (torch.multiprocessing, spawn)."""
    share(torch.ones(MIB, device="cuda"), MIB)


@alone
def ipc_of_a_part() -> None:
    """A tensor in the middle of a segment arrives at the right place."""
    keep = blank(4)
    tensor = torch.ones(3000, device="cuda")
    share(tensor[1000:2000], 1000)
    del keep


@alone
def fork_and_workers() -> None:
    """A DataLoader forks workers before and after CUDA has started."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    for _ in range(2):
        total = sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in loader)
        equal(total, 2016.0, "the sum")


@alone
def two_devices() -> None:
    """Two devices in one process: statistics apart, copies between them, tensors in place."""
    if torch.cuda.device_count() < 2:
        raise Skip("there is one device")
    first, second = torch.ones(MIB, device="cuda:0"), torch.full((MIB,), 2.0, device="cuda:1")
    equal(torch.cuda.memory_allocated(0), 4 * MIB, "allocated on device 0")
    equal(torch.cuda.memory_allocated(1), 4 * MIB, "allocated on device 1")
    equal((first + second.to("cuda:0")).sum().item(), 3.0 * MIB, "the sum over both")
    assert first.to("cuda:1").device.index == 1
    equal(train(device="cuda:0"), train(device="cuda:1"), "the loss on the second device")
    from torch.nn.parallel import comm

    replicas = comm.broadcast(first, [0, 1])
    equal(replicas[1].sum().item(), float(MIB), "the broadcast")


@check
def threads() -> None:
    """8 threads allocate, write, compare and free; no byte is given to two."""
    errors: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        held: list[tuple[torch.Tensor, int]] = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(300):
                size = int(torch.randint(1, 1 << 20, (), generator=generator))
                value = (seed * 1000 + turn) % 251
                held.append((torch.full((size,), value, dtype=torch.uint8, device="cuda"), value))
                if len(held) > 16:
                    tensor, value = held.pop(turn % len(held))
                    if not bool((tensor == value).all()):
                        errors.append(f"thread {seed}, turn {turn}")
        torch.cuda.synchronize()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, f"overwritten: {errors[:3]}"


@check
def freed_on_another_thread() -> None:
    """A tensor may die on any thread."""
    before = torch.cuda.memory_allocated()
    held = [blank(2) for _ in range(16)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    equal(torch.cuda.memory_allocated(), before, "memory_allocated")


# ---- a program's life ----


@check
def checkpoint() -> None:
    """torch.save and torch.load of model and optimizer, and training that goes on from there."""
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        loaded = torch.load(path, map_location="cuda")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded["model"][name], value), f"{name} differs"
    optimizer.load_state_dict(loaded["optimizer"])
    model(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()


@check
def training_repeats() -> None:
    """The same seed gives the same loss, to the bit."""
    equal(train(), train(), "the second loss")


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )


@check
def exit_with_live_tensors() -> None:
    """A program that ends with tensors, streams and threads alive ends well."""
    code = """
import threading, torch
held = [torch.ones(1 << 20, device="cuda") for _ in range(8)]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    late = held[0] * 2
held[1].record_stream(side)
class Holder:
    def __init__(self): self.tensor = torch.ones(1 << 20, device="cuda"); self.me = self
Holder()
threading.Thread(target=lambda: torch.ones(1 << 20, device="cuda")).start()
"""
    result = run_code(code)
    equal(result.returncode, 0, f"the exit status ({result.stderr.strip()[-300:]})")


@check
def exit_by_exception() -> None:
    """A program that dies of an exception has Python's exit status, and no second error."""
    result = run_code("import torch\nx = torch.ones(1 << 20, device='cuda')\nraise KeyError('me')")
    equal(result.returncode, 1, "the exit status")
    last = result.stderr.strip().splitlines()[-1]
    equal(last, "KeyError: 'me'", "the last line")


# ---- the harness ----


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of features in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_here(name: str) -> tuple[str, str]:
    """Runs a check in this process. Gives the verdict and why."""
    try:
        clean()
        with quiet():
            CHECKS[name]()
        torch.cuda.synchronize()
    except Skip as reason:
        return "SKIP", str(reason)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        text = str(error).strip().splitlines()
        return "FAIL", f"{type(error).__name__}: {text[0] if text else ''}"
    return "PASS", ""


def run_alone(name: str) -> tuple[str, str]:
    """Runs a check in a process of its own, which is this script."""
    try:
        result = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--child", name],
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "FAIL", f"it did not end in {CHILD_SECONDS_MAX} s"
    for line in result.stdout.splitlines():
        if line.startswith("verdict "):
            verdict, _, reason = line.removeprefix("verdict ").partition(" ")
            # A check that passes and a process that then dies have not passed.
            if verdict == "PASS" and result.returncode != 0:
                return "FAIL", f"passed, but the process ended with status {result.returncode}"
            return verdict, reason
    last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return "FAIL", f"the process ended with status {result.returncode}: {last}"


def describe() -> str:
    """What is checked, on one line."""
    mode = os.environ.get("GIRIH_MODE")
    allocator = f"Girih, {mode}" if mode else torch.cuda.get_allocator_backend()
    if mode and mode != "off":
        import girih

        if not girih.is_enabled():
            raise SystemExit("GIRIH_MODE is set, and Girih is not enabled: see the warning above")
    return f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, allocator: {allocator}"


def main(words: list[str]) -> int:
    """Runs the checks that are named, or all."""
    if words[:1] == ["--list"]:
        for name, function in CHECKS.items():
            print(f"{name:<28} {inspect.getdoc(function)}")
        return 0
    if not torch.cuda.is_available():
        print("SKIPPED: there is no GPU here")
        return 0
    if words[:1] == ["--child"]:
        describe()  # refuses to check another allocator than is meant
        verdict, reason = run_here(words[1])
        print("verdict", verdict, reason, flush=True)
        return 0
    if unknown := [name for name in words if name not in CHECKS]:
        print(f"no check is called {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    print(describe(), flush=True)
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for name in words or CHECKS:
        start = time.perf_counter()
        verdict, reason = run_alone(name) if name in ALONE else run_here(name)
        counts[verdict] += 1
        seconds = time.perf_counter() - start
        print(f"{verdict} {name:<28} {seconds:6.1f} s  {reason}".rstrip(), flush=True)
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
