"""Several devices in one process."""

from __future__ import annotations

import torch

from checks.registry import MIB, Skip, alone, equal, train


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


@alone
def record_stream_across_devices() -> None:
    """A tensor that a stream of another device is recorded on is freed once that one has passed."""
    if torch.cuda.device_count() < 2:
        raise Skip("there is one device")
    second = torch.cuda.Stream(device=1)
    for value in range(1, 11):
        tensor = torch.full((40 * MIB,), value, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize(0)
        with torch.cuda.stream(second):
            torch.cuda._sleep(10_000_000)
        tensor.record_stream(second)
        del tensor
        thief = torch.full((40 * MIB,), 100 + value, dtype=torch.uint8, device="cuda:0")
        equal(thief.unique().tolist(), [100 + value], "the tensor that came after")
        del thief
    for device in (0, 1):
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    for device in (0, 1):
        active = torch.cuda.memory_stats(device)["active_bytes.all.current"]
        equal(active, 0, f"bytes of device {device} in use when everything is freed")
