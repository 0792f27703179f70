"""Stitched memory: what lies in holes, under addresses of its own.

The checks hold for every allocator. Under the modes `stitch` and `auto` the large tensors here are
views of several holes, which `torch.cuda.memory_reserved` shows: nothing more is taken for them.
"""

from __future__ import annotations

import torch

from checks.processes import share
from checks.registry import MIB, Skip, alone, blank, equal


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


@alone
def ipc_of_stitched_memory() -> None:
    """A tensor over several holes goes to another process and back."""
    kept = holes(20, 40)
    share(torch.ones(790 * MIB // 4, device="cuda"), 790 * MIB // 4)
    del kept


def _reduce(rank: int, port: int, answers: object) -> None:
    """One of two processes: adds up tensors over holes with NCCL."""
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2)
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


@alone
def nccl_on_stitched_memory() -> None:
    """Collectives of NCCL read and write tensors over several holes."""
    import socket

    import torch.multiprocessing as mp

    if torch.cuda.device_count() < 2:
        raise Skip("there is one device")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.Queue()
    workers = [context.Process(target=_reduce, args=(rank, port, answers)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=200)
        if worker.is_alive():
            worker.terminate()
    equal([worker.exitcode for worker in workers], [0, 0], "the exit statuses")
