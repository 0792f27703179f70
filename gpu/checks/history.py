"""The memory history in detail: which stacks, which events, how many, and what draws them."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
from collections.abc import Iterator
from typing import Any

import torch

from checks.registry import MIB, Skip, alone, blank, check, equal

Event = dict[str, Any]


@contextlib.contextmanager
def recorded(**options: Any) -> Iterator[None]:
    """A history from here on, which is gone at the end."""
    known = inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters
    if lacking := [name for name in options if name not in known]:
        raise Skip(f"this release has no {', '.join(lacking)}")
    torch.cuda.memory._record_memory_history(**options)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def events() -> list[Event]:
    """What the history of device 0 has now."""
    found: list[Event] = torch.cuda.memory._snapshot()["device_traces"][0]
    return found


def names(event: Event) -> set[str]:
    """The functions in the stack of an event."""
    return {frame["name"] for frame in event.get("frames", ())}


def is_of_blocks(event: Event) -> bool:
    """True of an event of a block, not of a segment or of all."""
    return event["action"] in ("alloc", "free_requested", "free_completed")


def maker() -> torch.Tensor:
    """A place in a stack: where a tensor is made."""
    return torch.empty(12, device="cuda")


def breaker(held: list[torch.Tensor]) -> None:
    """A place in a stack: where it is freed."""
    held.clear()


@alone
def history_by_level() -> None:
    """Who made a tensor that is gone, and who freed it, is named as "state", "alloc", "all" say."""
    for context, is_made, is_freed in (
        ("state", False, False),
        ("alloc", True, False),
        ("all", True, True),
    ):
        torch.cuda.empty_cache()
        with recorded(context=context, stacks="python"):
            breaker([maker()])
            text = json.dumps(torch.cuda.memory._snapshot())
        equal("maker" in text, is_made, f"that the maker is named under {context}")
        equal("breaker" in text, is_freed, f"that the breaker is named under {context}")


@alone
def history_of_living() -> None:
    """With "state" the block of a tensor that lives has its stack, and its size as requested."""
    with recorded(enabled="state", stacks="python"):
        tensor = maker()
        blocks = [
            block
            for segment in torch.cuda.memory._snapshot()["segments"]
            for block in segment["blocks"]
            if block["address"] == tensor.untyped_storage().data_ptr()
        ]
    equal(len(blocks), 1, "the blocks at the tensor's address")
    equal(blocks[0]["requested_size"], 48, "its requested size")
    equal(blocks[0]["state"], "active_allocated", "its state")
    equal(blocks[0]["frames"][0]["name"], "maker", "the first frame of its stack")


@alone
def history_of_emptying() -> None:
    """Memory that goes back is the last event; with "all" its stack is that of empty_cache."""
    for context in ("state", "alloc", "all"):
        torch.cuda.empty_cache()
        with recorded(context=context, stacks="python"):
            block = blank(50)
            del block
            torch.cuda.empty_cache()
            found = events()
        last = found[-1]
        assert last["action"] in ("segment_free", "segment_unmap"), f"the last is {last['action']}"
        equal("empty_cache" in names(last), context == "all", f"that it is named under {context}")
        sizes = {"segment_alloc": 0, "segment_map": 0, "segment_free": 0, "segment_unmap": 0}
        for event in found:
            if event["action"] in sizes:
                sizes[event["action"]] += event["size"]
        came = sizes["segment_alloc"] + sizes["segment_map"]
        went = sizes["segment_free"] + sizes["segment_unmap"]
        assert min(came, went) >= 50 * MIB, f"{came} bytes came, {went} went"


@alone
def history_without_stacks() -> None:
    """context=None records events and no stacks; what was recorded before stays, and so after."""
    with recorded(context="all", stacks="python"):
        first = maker()
        torch.cuda.memory._record_memory_history(context=None)
        second = blank(3)
        torch.cuda.memory._record_memory_history(context="all", stacks="python")
        third = blank(5)
        by_address = {e["addr"]: e for e in events() if e["action"] == "alloc"}
    equal("maker" in names(by_address[first.data_ptr()]), True, "a stack of the first")
    equal(names(by_address[second.data_ptr()]), set(), "the stack of the second")
    equal("blank" in names(by_address[third.data_ptr()]), True, "a stack of the third")


@alone
def history_is_cleared() -> None:
    """clear_history=True forgets what was recorded; without it, it stays."""
    with recorded(clear_history=False):
        first = blank(3)
        torch.cuda.memory._record_memory_history(clear_history=False)
        second = blank(3)
        seen = {event["addr"] for event in events()}
        assert {first.data_ptr(), second.data_ptr()} <= seen, "events are lost"
        torch.cuda.memory._record_memory_history(clear_history=True)
        third = blank(3)
        seen = {event["addr"] for event in events() if event["action"] == "alloc"}
    assert not {first.data_ptr(), second.data_ptr()} & seen, "events are left"
    assert third.data_ptr() in seen, "the event after it is missing"


@alone
def history_is_bounded() -> None:
    """max_entries keeps the newest events, oldest first."""
    held = blank(64)
    del held
    with recorded(max_entries=6, context=None):
        for _ in range(50):
            block = blank(3)
            del block
        found = [event["action"] for event in events() if is_of_blocks(event)]
        times = [event["time_us"] for event in events()]
    assert len(times) <= 6, f"{len(times)} events are kept"
    # Nothing but the three events of each turn is told here, over and over.
    turn = ["alloc", "free_requested", "free_completed"]
    equal(found[-3:], turn, "the newest events")
    equal(times, sorted(times), "the times, in order,")


@alone
def history_skips() -> None:
    """skip_actions leaves out the actions that are named, and no others (torch 2.11)."""
    for skipped in ([], ["free_requested"], ["free_requested", "free_completed"], ["alloc"]):
        torch.cuda.empty_cache()
        with recorded(context="all", stacks="python", skip_actions=skipped):
            block = blank(3)
            del block
            found = {event["action"] for event in events() if is_of_blocks(event)}
        expected = {"alloc", "free_requested", "free_completed"} - set(skipped)
        equal(found, expected, f"the actions without {skipped}")
    with recorded(context="all", skip_actions=["segment_alloc", "segment_free"]):
        torch.cuda.empty_cache()
        block = blank(300)
        del block
        torch.cuda.empty_cache()
        found = {event["action"] for event in events()}
    assert not found & {"segment_alloc", "segment_free"}, f"the actions are {found}"


@alone
def history_has_metadata() -> None:
    """Each event has the user metadata of its moment (torch 2.10)."""
    mark = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    if mark is None:
        raise Skip("this release does not have it")
    with recorded(context="alloc"):
        mark("one")
        first = blank(3)
        equal(torch.cuda.memory._get_memory_metadata(), "one", "the metadata")
        mark("two")
        second = blank(3)
        del first
        mark("")
        third = blank(3)
        found = [(event["action"], event["user_metadata"]) for event in events()]
    told = [pair for pair in found if pair[0] in ("alloc", "free_requested")]
    expected = [("alloc", "one"), ("alloc", "two"), ("free_requested", "two"), ("alloc", "")]
    equal(told, expected, "what was told")
    del second, third


@alone
def history_of_out_of_memory() -> None:
    """A request without memory is one event, with its size and what the device had free."""
    total = torch.cuda.mem_get_info()[1]
    with recorded(context="all", stacks="python"), contextlib.suppress(torch.OutOfMemoryError):
        try:
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        finally:
            found = [event for event in events() if event["action"] == "oom"]
    equal(len(found), 1, "the events of it")
    assert 2 * total <= found[0]["size"] <= 2 * total + 32 * MIB, f"its size is {found[0]['size']}"
    assert 0 < found[0]["device_free"] <= total, f"{found[0]['device_free']} bytes were free"


@alone
def history_has_cpp_stacks() -> None:
    """stacks="all" names functions of C++ too, in events and in blocks that live."""
    with recorded(context="all", stacks="all"):
        tensor = torch.rand(311, 411, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
    event = next(e for e in snapshot["device_traces"][0] if e["addr"] == tensor.data_ptr())
    assert any("::rand" in name for name in names(event)), f"the stack is {names(event)}"
    assert "history_has_cpp_stacks" in names(event), f"the stack is {names(event)}"


@alone
def history_of_compiled_regions() -> None:
    """compile_context=True says which compiled region asked (torch 2.8)."""
    if os.environ.get("GIRIH_PARITY_NO_COMPILE"):
        raise Skip("GIRIH_PARITY_NO_COMPILE is set")
    with recorded(context="all", stacks="python", compile_context=True):

        @torch.compile(backend="eager")
        def doubled(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        outside = blank(3)
        inside = doubled(torch.ones(1000, device="cuda"))
        by_address = {e["addr"]: e for e in events() if e["action"] == "alloc"}
    equal(by_address[outside.data_ptr()]["compile_context"], "N/A", "the region of the one outside")
    region = by_address[inside.data_ptr()]["compile_context"]
    assert region.startswith("Torch-Compiled Region"), f"the region is {region}"


@alone
def history_is_drawn() -> None:
    """The tools of torch.cuda._memory_viz take the snapshot, with and without stacks."""
    from torch.cuda import _memory_viz as viz

    for options in ({"context": "all", "stacks": "python"}, {"context": None}):
        torch.cuda.empty_cache()
        with recorded(**options):
            held = [torch.rand(128, 128, device="cuda") for _ in range(3)]
            block = blank(44)
            del block, held[1]
            torch.cuda.empty_cache()
            snapshot = torch.cuda.memory._snapshot()
        text = viz.trace(snapshot)
        for words in ("# free completed for", "TOTAL MEM"):
            assert words in text, text[:200]
        assert viz.segsum(snapshot), "segsum draws nothing"
        for draw in (viz.trace_plot, viz.segment_plot):
            assert "<" in draw(snapshot), f"{draw.__name__} gives no page"
        assert "65536" in json.dumps(snapshot), "the size of a tensor is not in the text"
        equal(pickle.loads(pickle.dumps(snapshot)), snapshot, "the snapshot, pickled")
        del held


@alone
def profile_is_drawn() -> None:
    """A profile with memory and stacks becomes a snapshot, and a page."""
    from torch.cuda import _memory_viz as viz

    with torch.profiler.profile(
        with_stack=True, profile_memory=True, record_shapes=True
    ) as profile:
        tensor = torch.rand(128, 128, device="cuda")
        product = tensor * tensor + tensor
    text = json.dumps(viz._profile_to_snapshot(profile))
    for word in ("category", "profile_is_drawn"):
        assert word in text, text[:300]
    assert "<" in viz.profile_plot(profile), "it gives no page"
    del product


@check
def history_legacy() -> None:
    """_record_memory_history(True) is the older form; False stops it and forgets what it has."""
    try:
        torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100)
        block = blank(3)
        found = [event["action"] for event in events() if event["addr"] == block.data_ptr()]
        equal(found[-1:], ["alloc"], "the last event")
    finally:
        torch.cuda.memory._record_memory_history(False)
    equal(events(), [], "the events after it was turned off")
