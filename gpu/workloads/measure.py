"""What every workload measures: losses, step times and peaks, step by step.

A workload is plain training code that knows no allocator. It makes a `Measure`, puts each step
under `with measure.step():`, hands over the losses, and prints the result at its end. The peaks are
taken twice: over the whole process, and over the steps from `settled` on, when an allocator that
learns has learnt. If Girih is in the process, what it did in those steps is counted too. On the
CPU, where a workload can only be tried, all that is said of memory is 0.
"""

import collections
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch


def take_turn(path: str) -> None:
    """Waits until no other process has the file's lock, and keeps it to the end of this process.

    Programs that are started side by side load their libraries at once then, and have the GPU one
    after the other, so that each is timed alone.
    """
    # A process's files are closed in the order of their numbers: the GPU's before this one.
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fcntl.fcntl(held, fcntl.F_DUPFD, 500), fcntl.LOCK_EX)
    os.close(held)


def deterministic(exact: bool = False) -> None:
    """Makes equal runs give equal losses. To be called before CUDA starts.

    A launch that has GIRIH_TURNS, the path of a file, in its environment waits here for its turn.

    With `exact`, bit by bit: an operation without a deterministic kernel is an error. Without, a
    warning, and then attention's backward pass is not deterministic: PyTorch asks it to be only if
    a warning would not do.
    """
    # The ranks of a job wait for their first one, and have its turn.
    if (turns := os.environ.get("GIRIH_TURNS")) and os.environ.get("RANK", "0") == "0":
        take_turn(turns)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if exact:
        # The order of a sum over several GPUs.
        os.environ.setdefault("NCCL_ALGO", "Ring")
    torch.use_deterministic_algorithms(True, warn_only=not exact)
    # cuDNN's attention is deterministic only if a warning is an error.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Filling fresh memory would cost time, and hide what an allocator does wrong.
    torch.utils.deterministic.fill_uninitialized_memory = False


def girih_stats() -> dict[str, Any] | None:
    """What Girih says of this device; None if it is not the allocator here."""
    girih: Any = sys.modules.get("girih")
    if girih is None or not girih.is_enabled():
        return None
    found: dict[str, Any] = girih.stats(torch.cuda.current_device())
    return found


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """By how much each number grew."""
    if after.get("swap") and before.get("swap"):
        before = before | {f"swap.{name}": value for name, value in before["swap"].items()}
        after = after | {f"swap.{name}": value for name, value in after["swap"].items()}
    # What was not known before has not grown.
    changes = {
        name: value - before[name]
        for name, value in after.items()
        if all(
            isinstance(number, int | float) and not isinstance(number, bool)
            for number in (value, before.get(name))
        )
    }
    # A driver call of a kind that was never made is not listed.
    calls = {name: value - before["calls"].get(name, 0) for name, value in after["calls"].items()}
    # The second look itself asked the driver once.
    calls["memory_info"] = max(0, calls.get("memory_info", 0) - 1)
    changes["calls"] = {name: count for name, count in calls.items() if count}
    spent_before = before.get("driver_seconds_by_call", {})
    changes["driver_seconds_by_call"] = {
        name: seconds - spent_before.get(name, 0)
        for name, seconds in after.get("driver_seconds_by_call", {}).items()
    }
    return changes


# What is noted of Girih after each step, of its statistics and of its swapping's.
EACH = ("driver_seconds", "stitches", "layouts", "layouts_refused")
EACH_OF_SWAP = ("bytes_out", "victims", "demanded", "waited_us", "policy_changes")


def of_each(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    """What a step did, of which Girih keeps sums; and the schedule that it knows then."""
    if before is None or after is None:
        return {}
    swap, swap_before = after.get("swap") or {}, before.get("swap") or {}
    found = {name: after[name] - before.get(name, 0) for name in EACH if name in after}
    if "layout_without_place" in after:
        found["without_place"] = after["layout_without_place"]
    found["mapped"] = after["calls"].get("map", 0) - before["calls"].get("map", 0)
    spent_before = before.get("driver_seconds_by_call", {})
    for call, seconds in after.get("driver_seconds_by_call", {}).items():
        found[f"{call}_s"] = seconds - spent_before.get(call, 0)
    found |= {name: swap[name] - swap_before.get(name, 0) for name in EACH_OF_SWAP if name in swap}
    found |= {name: swap[name] for name in ("settled", "step_us_swapped") if name in swap}
    if found.get("layouts") or found.get("layouts_refused"):
        found["layout_without_place"] = after["layout_without_place"]
    return {name: round(value, 4) for name, value in found.items()}


def kernel_times(events: list[tuple[str, int, int]]) -> dict[str, Any]:
    """What the work of a device took, of which name, beginning and nanoseconds are given.

    How many there were, how long at least one ran, how long all of them together, and the names
    that took longest with their seconds and how many they were.
    """
    busy = end = 0
    for _, begins, took in sorted(events, key=lambda event: event[1]):
        busy += max(0, begins + took - max(begins, end))
        end = max(end, begins + took)
    times: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for name, _, took in events:
        times[name[:120]] += took
        counts[name[:120]] += 1
    return {
        "kernels": len(events),
        "busy_s": busy / 1e9,
        "sum_s": sum(times.values()) / 1e9,
        "longest": {name: [took / 1e9, counts[name]] for name, took in times.most_common(25)},
    }


class Kernels:
    """What the kernels of one step take, by CUPTI.

    It tells whether a step is longer because of the host, which gives the device nothing to do, or
    because kernels are.
    """

    def __init__(self) -> None:
        self.activities = [torch.profiler.ProfilerActivity.CUDA]
        self.found: dict[str, Any] = {}

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """A step that is looked at."""
        start = time.perf_counter()
        with torch.profiler.profile(activities=self.activities) as profile:
            before = time.process_time(), time.perf_counter()
            yield
            torch.cuda.synchronize()
            taken = time.process_time() - before[0], time.perf_counter() - before[1]
        events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        here = torch.autograd.DeviceType.CPU
        there = [it for it in events if it.device_type() != here]
        self.found = {
            "step_s": taken[1],
            "cpu_s": taken[0],
            **kernel_times([(it.name(), it.start_ns(), it.duration_ns()) for it in there]),
            "looking_s": time.perf_counter() - start,
        }


class Measure:
    """Times and peaks of one process's training."""

    def __init__(
        self, name: str, settled: int, samples: int, device: str = "cuda", each: bool = False
    ) -> None:
        self.name = name
        self.on_gpu = device == "cuda"
        self.settled = settled
        # That all processes together train on in a step.
        self.samples = samples
        self.seconds: list[float] = []
        self.losses: list[float] = []
        # At the end of each step.
        self.reserved: list[int] = []
        self.peaks: list[dict[str, int]] = []
        self.device_used = 0
        # By PyTorch's own count, before the settled steps.
        self.device_calls = 0
        self.girih: dict[str, Any] | None = None
        # What Girih did in each step, if that is wanted: to ask for it is itself a driver's call.
        self.looks = each
        self.each: list[dict[str, Any]] = []
        # The step with this number is looked at kernel by kernel, and not timed with the others.
        self.looked_at = int(os.environ.get("GIRIH_KERNELS", "-1"))
        self.kernels = Kernels()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One iteration, from an idle device to an idle device."""
        if len(self.seconds) == self.settled:
            self._note_peaks()
            self.device_calls = self._device_calls()
            if self.on_gpu:
                torch.cuda.reset_peak_memory_stats()
                self.girih = girih_stats()
        girih = girih_stats() if self.on_gpu and self.looks else None
        self._synchronize()
        if self.on_gpu and len(self.seconds) == self.looked_at and not self.kernels.found:
            with self.kernels.seen():
                yield
            return
        start = time.perf_counter()
        try:
            yield
        except BaseException:
            # Of a step that ran out of memory, say, nothing is left but how far it was.
            stopped = {"step_s": self.seconds, "step_reserved": self.reserved}
            print("STOPPED " + json.dumps(stopped), flush=True)
            raise
        self._synchronize()
        self.seconds.append(time.perf_counter() - start)
        if os.environ.get("WORLD_SIZE", "1") == "1":
            # Whoever stops this program knows how far it came. Ranks would write into each other's
            # results.
            print(f"STEP {self.seconds[-1]:.5f}", flush=True)
        if self.on_gpu:
            self.reserved.append(torch.cuda.memory_reserved())
            free, total = torch.cuda.mem_get_info()
            self.device_used = max(self.device_used, total - free)
            if girih is not None:
                self.each.append(of_each(girih, girih_stats()))

    def loss(self, value: torch.Tensor) -> None:
        """The loss of the step that has just ended."""
        self.losses.append(float(value.detach()))

    def _synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def _stats(self) -> dict[str, int]:
        return torch.cuda.memory_stats() if self.on_gpu else collections.Counter()

    def _device_calls(self) -> int:
        stats = self._stats()
        return stats["num_device_alloc"] + stats["num_device_free"]

    def _note_peaks(self) -> None:
        stats = self._stats()
        self.peaks.append(
            {
                "allocated": stats["allocated_bytes.all.peak"],
                "reserved": stats["reserved_bytes.all.peak"],
            }
        )

    def result(self) -> dict[str, Any]:
        """Everything that was seen. Bytes and seconds."""
        followed = self._followed()
        if self.kernels.found:
            followed["kernels"] = self.kernels.found
        self._note_peaks()
        stats = self._stats()
        whole = {key: max(peak[key] for peak in self.peaks) for key in self.peaks[0]}
        settled = self.peaks[-1]
        steady = sorted(self.seconds[self.settled :]) or sorted(self.seconds)
        return {
            "name": self.name,
            "rank": int(os.environ.get("RANK", "0")),
            "losses": [f"{loss:.6f}" for loss in self.losses],
            "exact_losses": [loss.hex() for loss in self.losses],
            "allocated_peak": whole["allocated"],
            "reserved_peak": whole["reserved"],
            "efficiency": whole["allocated"] / max(1, whole["reserved"]),
            "settled_allocated_peak": settled["allocated"],
            "settled_reserved_peak": settled["reserved"],
            "settled_efficiency": settled["allocated"] / max(1, settled["reserved"]),
            "device_used": self.device_used,
            "first_step_s": self.seconds[0],
            "median_step_s": steady[len(steady) // 2],
            "step_s": [round(seconds, 5) for seconds in self.seconds],
            "step_reserved": self.reserved,
            "settled_from": self.settled if self.seconds[self.settled :] else 0,
            "samples": self.samples,
            "requests": stats["allocation.all.allocated"],
            "retries": stats["num_alloc_retries"],
            "ooms": stats["num_ooms"],
            "device_calls": self._device_calls(),
            "settled_device_calls": self._device_calls() - self.device_calls,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if self.on_gpu else None,
        } | followed

    def _followed(self) -> dict[str, Any]:
        """What Girih did in the settled steps, number by number."""
        after = girih_stats() if self.on_gpu else None
        if after is None or self.girih is None:
            return {}
        changes = difference(self.girih, after)
        return {
            "stage": after["stage"],
            "settled_steps": len(self.seconds) - self.settled,
            "settled_calls": changes.pop("calls"),
            "settled_changes": changes,
            "swap": after.get("swap"),
            "each": self.each,
        }

    def print(self) -> None:
        """One line that `gpu/modes.py` looks for."""
        print("RESULT " + json.dumps(self.result()), flush=True)
