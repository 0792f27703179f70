"""Other processes: tensors sent to one that is spawned (IPC), and workers that are forked.

A spawned process finds its function by the name of this module: it is started with the `sys.path`
of the process that starts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from checks.registry import MIB, alone, blank, equal


@contextlib.contextmanager
def other_process(work: Callable[[Any, Any], None]) -> Iterator[tuple[Any, Any]]:
    """A spawned process: what it is sent, and what it answers.

    At the end it is sent None, which lets it go, and must end well.
    """
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(queue, answers))
    process.start()
    try:
        yield queue, answers
    finally:
        queue.put(None)
        process.join(timeout=60)
        if process.is_alive():
            process.terminate()
    equal(process.exitcode, 0, "the exit status of the other process")


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
    with other_process(_ipc_reader) as (queue, answers):
        queue.put(tensor)
        equal(answers.get(timeout=120), ("cuda", expected), "what the other process sees")
        answers.get(timeout=120)
        assert bool((tensor == 3).all()), "what the other process wrote is not here"


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


LARGE = 200 * MIB  # floats


def _ipc_partner(queue: Any, answers: Any) -> None:
    """The other process: adds what it was sent to a tensor of its own, and sends that back."""
    sent = queue.get()
    own = torch.full((LARGE,), 40.0, device="cuda")
    own += sent
    sent.fill_(3)
    torch.cuda.synchronize()
    answers.put(own)
    queue.get()  # lives until the tensor is no longer read
    answers.put(own.unique().tolist())
    del sent


@alone
def ipc_both_ways() -> None:
    """A large tensor goes to a spawned process, and one of that process comes back."""
    with other_process(_ipc_partner) as (queue, answers):
        mine = torch.full((LARGE,), 2.0, device="cuda")
        queue.put(mine)
        theirs = answers.get(timeout=120)
        equal(theirs.unique().tolist(), [42.0], "what the other process sent")
        equal(mine.unique().tolist(), [3.0], "what the other process wrote")
        theirs.fill_(5)
        torch.cuda.synchronize()
        del theirs  # before the process that it belongs to ends
        queue.put(None)
        equal(answers.get(timeout=120), [5.0], "what the other process sees in the end")


def _ipc_sums(queue: Any, answers: Any) -> None:
    """The other process: the sums of what it was sent, and then lets go of all."""
    tensors = queue.get()
    answers.put([tensor.sum().item() for tensor in tensors])
    del tensors
    torch.cuda.ipc_collect()
    answers.put("let go")
    queue.get()  # lives until it is let go


@alone
def ipc_of_many() -> None:
    """Many tensors, small ones of one segment among them, arrive; what was sent is memory again."""
    with other_process(_ipc_sums) as (queue, answers):
        before = torch.cuda.memory_allocated()
        sizes = [*range(1, 40), 1000, 300_000, 5 * MIB, 0]
        tensors = [torch.full((size,), 1.0, device="cuda") for size in sizes]
        queue.put(tensors)
        equal(answers.get(timeout=120), [float(size) for size in sizes], "the sums")
        equal(answers.get(timeout=120), "let go", "what the other process says")
        del tensors
        torch.cuda.ipc_collect()
        equal(torch.cuda.memory_allocated(), before, "bytes in use when both have let go")


def _ipc_waits(queue: Any, answers: Any) -> None:
    """The other process: reads a tensor behind an event of the process that writes it."""
    event, tensor = queue.get()
    answers.put("has it")
    queue.get()
    torch.cuda.current_stream().wait_event(event)
    answers.put(tensor.unique().tolist())
    queue.get()  # lives until it is let go
    del tensor


@alone
def ipc_event() -> None:
    """A process waits for an event of another one, and reads what was written before it."""
    with other_process(_ipc_waits) as (queue, answers):
        event = torch.cuda.Event(interprocess=True)
        tensor = torch.zeros(20 * MIB, dtype=torch.uint8, device="cuda")
        event.record()
        queue.put((event, tensor))
        equal(answers.get(timeout=120), "has it", "what the other process says")
        torch.cuda._sleep(500_000_000)
        tensor.fill_(7)
        event.record()
        queue.put(None)
        equal(answers.get(timeout=120), [7], "what the other process reads")


@alone
def fork_and_workers() -> None:
    """A DataLoader forks workers before and after CUDA has started."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    for _ in range(2):
        total = sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in loader)
        equal(total, 2016.0, "the sum")
