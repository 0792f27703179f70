"""What memory looks like and what happened to it: the snapshot and the recorded history."""

from __future__ import annotations

import pickle
import tempfile
import time
from pathlib import Path

import torch

from checks.registry import MIB, blank, check, equal


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


def born() -> torch.Tensor:
    """A place in a call stack: the tensor's birth."""
    return blank(9)


def dies(held: list[torch.Tensor]) -> int:
    """A place in a call stack: the tensor's death. Gives where it was."""
    address = held[0].data_ptr()
    held.clear()
    return address


def frames_of(context: str) -> dict[str, set[str]]:
    """The functions in the call stack of each event of a tensor that is made and freed."""
    torch.cuda.memory._record_memory_history(context=context, stacks="python")
    try:
        address = dies([born()])
        traces = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return {
        event["action"]: {frame["name"] for frame in event.get("frames", ())}
        for event in traces
        if event["addr"] == address and not event["action"].startswith("segment")
    }


@check
def memory_history_of_frees() -> None:
    """The history has the stack of each free; with context="alloc" that of the allocation."""
    stacks = frames_of("all")
    assert "born" in stacks["alloc"], stacks
    for action in ("free_requested", "free_completed"):
        assert "dies" in stacks[action], f"{action}: {stacks[action]}"
        assert "born" not in stacks[action], f"{action}: {stacks[action]}"
    stacks = frames_of("alloc")
    for action in ("alloc", "free_requested", "free_completed"):
        assert "born" in stacks[action], f"{action}: {stacks[action]}"
