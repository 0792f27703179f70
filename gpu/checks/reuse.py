"""When a block serves again: not before those who use it have passed, and then at once."""

from __future__ import annotations

import random
from unittest import mock

import torch

from checks.registry import MIB, Skip, alone, check, equal


@alone
def reuse_after_a_recorded_stream() -> None:
    """A block that another stream was recorded on serves again behind it, and not before."""
    side = torch.cuda.Stream()
    host = torch.tensor([1.0, 2.0, 3.0, 4.0]).pin_memory()
    result = torch.empty(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        sent = host.to("cuda", non_blocking=True)
        place = sent.data_ptr()
    main = torch.cuda.current_stream()
    main.wait_stream(side)
    sent.record_stream(main)
    torch.cuda._sleep(200_000_000)
    result.copy_(sent)
    del sent
    with torch.cuda.stream(side):
        early = torch.zeros(4, device="cuda")
        assert early.data_ptr() != place, "the block was given away while it was read"
    equal(result.tolist(), [1.0, 2.0, 3.0, 4.0], "what was read")
    main.synchronize()
    with torch.cuda.stream(side):
        late = torch.zeros(4, device="cuda")
        equal(late.data_ptr(), place, "the place of a tensor behind all that")


@alone
def reuse_after_a_recorded_part() -> None:
    """A stream that is recorded on a part of a tensor holds all of it."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        whole = torch.zeros(1000, device="cuda")
    place, part = whole.data_ptr(), whole[500:]
    with torch.cuda.stream(second):
        torch.cuda._sleep(200_000_000)
    part.record_stream(second)
    del whole, part
    first.synchronize()
    with torch.cuda.stream(first):
        other = torch.empty(1000, device="cuda")
    assert other.data_ptr() != place, "the block was given away"
    second.synchronize()


@alone
def reuse_when_memory_is_short() -> None:
    """Blocks whose free waits for a stream serve before a request is refused."""
    total = torch.cuda.mem_get_info()[0]
    size = total // 24
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sums = torch.zeros(size // 4, device="cuda")
    for _ in range(100):
        block = torch.empty(size // 4, device="cuda")
        with torch.cuda.stream(stream):
            sums += block
        block.record_stream(stream)
        del block
    torch.cuda.synchronize()


@check
def reuse_at_random() -> None:
    """Tensors come and go at random, with the cache emptied between, and all keep their values."""
    draw = random.Random(123)
    held: list[tuple[int, torch.Tensor]] = []
    elements, turns = 0, 3_000
    for turn in range(turns):
        (action,) = draw.choices(("make", "drop", "empty"), weights=(1, 1, 0.1))
        if action == "make" and elements < 100 * MIB:
            size = draw.randrange(MIB // 2, 5 * MIB)
            held.append((turn, torch.full((size,), turn, dtype=torch.int32, device="cuda")))
            elements += size
        elif action == "empty":
            torch.cuda.empty_cache()
        elif held:
            value, tensor = held.pop(draw.randrange(len(held)))
            assert bool((tensor == value).all()), f"the tensor of turn {value} was overwritten"
            elements -= tensor.numel()


@alone
def asking_does_not_wait() -> None:
    """A request for new memory returns while the stream is busy, and so does a copy into it."""
    host = torch.randn(MIB, pin_memory=True)
    host.to("cuda")
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    torch.cuda._sleep(2_000_000_000)
    there = host.to("cuda", non_blocking=True)
    more = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    equal(stream.query(), False, "that the stream has come to its end by then")
    stream.synchronize()
    equal(torch.equal(there.cpu(), host), True, "that the copy is right")
    del more


@alone
def traced_requests() -> None:
    """The hooks of torch.cuda._gpu_trace hear of each request and free, once, with its address."""
    from torch.cuda import _gpu_trace

    for name in ("memory_allocation", "memory_deallocation"):
        if not hasattr(_gpu_trace, f"register_callback_for_{name}"):
            raise Skip("this release does not have it")
    torch.cuda.init()
    torch.empty(1, device="cuda")
    made, gone, other = mock.MagicMock(), mock.MagicMock(), mock.MagicMock()
    torch._C._activate_gpu_trace()
    _gpu_trace.register_callback_for_memory_allocation(made)
    _gpu_trace.register_callback_for_memory_allocation(other)
    _gpu_trace.register_callback_for_memory_deallocation(gone)
    tensor = torch.empty(10, 4, device="cuda")
    place = tensor.data_ptr()
    made.assert_called_once_with(place)
    other.assert_called_once_with(place)
    gone.assert_not_called()
    del tensor
    gone.assert_called_once_with(place)
    address = torch.cuda.caching_allocator_alloc(MIB)
    equal(made.call_args.args, (address,), "what is heard of a plain request")
    torch.cuda.caching_allocator_delete(address)
    equal(gone.call_args.args, (address,), "what is heard of a plain free")
