"""`longer.py` with a look at what becomes of the bytes of each saved tensor: for `gpu/reuse.py`.

python gpu/workloads/reused.py --way streams --cap 24GiB ...     # options of longer.py
python -m girih run --gpu-budget 24GiB gpu/workloads/reused.py --way plain ...

PyTorch's memory history of one settled step and the next is read. Every tensor that autograd saves
in the first of them is noted by its address, where it is packed. The block there belonged to it,
and the history says when that block was let go of, when the allocator had it back, and which
request was given a part of its bytes next.
"""

import argparse
import bisect
import collections
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

LEAST = 1 << 20
# Events of two steps at most: far more than models of this size make.
EVENTS_MAX = 2_000_000


@dataclasses.dataclass
class Saved:
    """A tensor that autograd saves: where, and when, in us of the history's clock."""

    address: int
    at_us: float
    used_us: float = math.inf
    """When backward asks for it."""


@dataclasses.dataclass(frozen=True)
class Reuse:
    """What became of the bytes of a saved tensor. Bytes, us, and requests."""

    size: int
    pending_us: float
    """From the free until the allocator had the block back."""
    us: float | None
    """From the free until a request was given bytes of it; None if that was not seen."""
    requests: int | None
    """Requests of any size between the two, the one that was given them not among them."""


def blocks_of(saved: list[Saved], events: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """For each saved tensor the event that allocated its block and the one that let go of it.

    Several tensors over one block are one. Left out is what was allocated before the history began,
    what is not freed in it, and what is freed only after backward has asked for it: it never went.
    """
    begun: dict[int, list[int]] = collections.defaultdict(list)
    freed: dict[int, list[int]] = collections.defaultdict(list)
    for place, event in enumerate(events):
        if event["action"] == "alloc":
            begun[event["addr"]].append(place)
        elif event["action"] == "free_requested":
            freed[event["addr"]].append(place)
    addresses = sorted(begun)
    seen = set()
    for tensor in saved:
        # A view may begin within its block, and blocks follow each other: so the last that begins
        # at or before it, and was there then.
        nearest = bisect.bisect_right(addresses, tensor.address)
        for address in reversed(addresses[max(0, nearest - 64) : nearest]):
            alive = [
                place
                for place in begun[address]
                if events[place]["time_us"] <= tensor.at_us
                and tensor.address < address + events[place]["size"]
            ]
            if not alive:
                continue
            first = alive[-1]
            later = freed[address]
            last = bisect.bisect_right(later, first)
            if last < len(later) and first not in seen:
                seen.add(first)
                if tensor.at_us <= events[later[last]]["time_us"] < tensor.used_us:
                    yield first, later[last]
            break


def follow(saved: list[Saved], events: list[dict[str, Any]]) -> list[Reuse]:
    """What became of each, as far as the history says. The events are in order."""
    found = []
    for _, free in blocks_of(saved, events):
        begin, size = events[free]["addr"], events[free]["size"]
        at, back, requests, us = events[free]["time_us"], None, 0, None
        for event in events[free + 1 :]:
            if event["action"] == "free_completed" and event["addr"] == begin and back is None:
                back = event["time_us"] - at
            elif event["action"] == "alloc":
                is_over = event["addr"] < begin + size and begin < event["addr"] + event["size"]
                if is_over and back is not None:
                    us = event["time_us"] - at
                    break
                requests += 1
        if back is not None:
            found.append(Reuse(size, back, us, None if us is None else requests))
    return found


def now_us() -> float:
    """The clock of the history: us since 1970."""
    return time.time_ns() / 1e3


class Watch:
    """Notes what is saved in one step, and has the history of it and of the next."""

    def __init__(self, torch: Any, step: int) -> None:
        self.torch = torch
        self.step = step
        self.saved: list[Saved] = []
        self.is_noting = False
        self.parameters: set[int] = set()

    def note(self, tensor: Any) -> Saved | None:
        """Autograd saves a tensor. Its storage is not asked for: Python's object would keep it."""
        if self.is_noting and tensor.is_cuda and tensor.numel() * tensor.element_size() >= LEAST:
            self.saved.append(Saved(tensor.data_ptr(), now_us()))
            return self.saved[-1]
        return None

    def begin_step(self, step: int) -> None:
        """The history begins with the step that is watched, and does not end with it."""
        self.is_noting = step == self.step
        if step == self.step:
            self.torch.cuda.memory._record_memory_history(
                "all", context=None, stacks="python", max_entries=EVENTS_MAX
            )

    def events(self) -> list[dict[str, Any]]:
        """What the history has."""
        traces = self.torch.cuda.memory._snapshot()["device_traces"]
        self.torch.cuda.memory._record_memory_history(None)
        return list(traces[self.torch.cuda.current_device()])


def watch_girih(watch: Watch, torch: Any) -> None:
    """Puts the notes around Girih's hooks, which stay in force."""
    from girih import _native

    autograd = torch._C._autograd
    innermost = autograd._top_saved_tensors_default_hooks(True)
    if innermost is None or innermost[0] is not _native.pack:
        raise RuntimeError("run it with --gpu-budget: Girih's hooks are not in force")
    autograd._pop_saved_tensors_default_hooks()

    def pack(tensor: Any) -> Any:
        return watch.note(tensor), _native.pack(tensor)

    def unpack(packed: Any) -> Any:
        noted, saved = packed
        if noted is not None:
            noted.used_us = min(noted.used_us, now_us())
        return _native.unpack(saved)

    autograd._push_saved_tensors_default_hooks(pack, unpack)


def main() -> None:
    """Trains as `longer.py` does, and prints what was seen as REUSE."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cap", type=int, default=0, help="bytes that PyTorch may hold")
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest

    import longer
    import torch
    from measure import Measure

    arguments = longer.parse()
    watch = Watch(torch, arguments.steps - 2)
    if own.cap:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(own.cap / total)

    class Watching(Measure):
        """Tells the watch of steps."""

        def step(self) -> Any:
            watch.begin_step(len(self.seconds))
            return super().step()

    class Noting(longer.OnStreams):
        """Notes what goes."""

        def pack(self, tensor: Any) -> Any:
            packed = super().pack(tensor)
            if isinstance(packed, tuple):
                watch.note(tensor)
            return packed

    longer.Measure = Watching
    longer.OnStreams = Noting
    girih: Any = sys.modules.get("girih")
    if girih is not None and girih.is_enabled():
        watch_girih(watch, torch)
    longer.main()
    found = follow(watch.saved, watch.events())
    seen = {"saved": len(watch.saved), "reuses": [dataclasses.astuple(it) for it in found]}
    print("REUSE " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
