"""What a run is told of itself at its end: a line for its user, a file for scripts."""

from __future__ import annotations

import json
import sys
from typing import Any

from girih import _paths, _process, _ranks, _stats
from girih._settings import Settings


def show(settings: Settings, *, report: str | None, is_quiet: bool) -> None:
    """Writes the report, and prints a line for each device if a person looks on."""
    if _process.enabled() is None:
        found = _process.off_report("the program did not import torch")
    else:
        found = _process.report()
    # What was not imported has split nothing, and is not imported for it: it needs torch.
    long_contexts = sys.modules.get("girih._long.api")
    found["long_contexts"] = long_contexts.reports() if long_contexts else []
    found["settings"] = json.loads(settings.for_heaps(key="", torch=""))
    if report is not None:
        try:
            _paths.write_whole(_paths.own(report), json.dumps(found, indent=1) + "\n")
        except OSError as error:
            print(f"girih: the report is not written: {error}", file=sys.stderr)
    # One rank of a machine speaks for all.
    if _ranks.is_first_of_machine() and not is_quiet and sys.stderr.isatty():
        for device in found["devices"]:
            print(line(device), file=sys.stderr)
        for model in found["long_contexts"]:
            print(line_of_split(model["layers"], model["found"]), file=sys.stderr)


def line(device: dict[str, Any]) -> str:
    """What came of a device, on one line."""
    allocated, reserved = device["allocated_peak"], device["reserved_peak"]
    parts = [f"peak {size(allocated)} allocated of {size(reserved)} reserved"]
    if reserved > 0:
        parts.append(f"efficiency {100 * allocated / reserved:.2f} %")
    requests = device["hits"] + device["misses"]
    if requests > 0:
        parts.append(f"{100 * device['hits'] / requests:.1f} % of requests as planned")
    swap = device.get("swap")
    if swap and (swap["copies_out"] or not swap["at_the_edge"]):
        why = "the GPU was full: " if swap["at_the_edge"] else ""
        parts.append(
            f"{why}swapped {size(swap['bytes_out'])} out and {size(swap['bytes_in'])} in, "
            f"{swap['demanded']} tensors fetched late, {size(swap['host_peak'])} on the host"
        )
        if swap["states_out"]:
            parts.append(
                f"{size(swap['states_out'])} of that states of optimizers, "
                f"{swap['states_late']} of them late"
            )
        if swap["waited_for"]:
            parts.append(line_of_waits(swap))
        if links := _stats.links(swap):
            parts.append(f"links of {links}")
    if device["ooms"] > 0:
        parts.append(f"{device['ooms']} requests out of memory")
    return f"girih {device['mode']}, cuda:{device['device']}: " + ", ".join(parts)


def line_of_waits(swap: dict[str, Any]) -> str:
    """How long copies were waited for, and for which tensor the longest."""
    worst = swap["waited_for"][0]
    way = "came back" if worst["way"] == "in" else "went"
    where = f" of {worst['module']}" if worst["module"] else ""
    what = f"saved by operator {worst['saved_at']} of a step"
    if worst["is_state"]:
        what = "a state of an optimizer"
    # Not every device tells the time, and what is under way has none yet.
    times = f" for {swap['waited_us'] / 1000:.1f} ms" if swap["waited_us"] > 0 else ""
    return (
        f"waited{times} in {swap['waits']} uses, most for {size(worst['size'])} of shape "
        f"{worst['shape']}{where}, {what}, that {way}"
    )


def line_of_split(layers: list[dict[str, Any]], found: dict[str, Any] | None = None) -> str:
    """What came of a model that is split by tokens, on one line."""
    last = [layer for layer in layers if layer["tokens"]]
    saved, kept = (sum(layer[name] for layer in last) for name in ("bytes_saved", "bytes_kept"))
    is_split = sum(layer["kept"] < layer["tokens"] for layer in last)
    text = f"girih, split by tokens: {is_split} of {len(layers)} layers"
    if is_split:
        most = max(layer["tokens"] for layer in last)
        text += f", {size(kept)} kept of {size(saved)} that layers save of {most:,} tokens"
    if found and found["way"]:
        tried = len(found["us_per_token"])
        text += f", {found['way']} kept, the fastest of {tried} ways that were tried"
    reasons = [f"{layer['name']}: {layer['reason']}" for layer in layers if layer["reason"]]
    return "; ".join([text, *reasons[:1]])


def size(count: int) -> str:
    """Bytes for people."""
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count / 1024:.1f} KiB"
