"""What `girih.stats()` gives: a dict that draws itself, as text and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from girih._units import count, percent, size

_COLOURS = {"in use": "#2a6f97", "idle": "#e9c46a", "others": "#b0b0b0", "free": "#f3f3f3"}


class Stats(dict[str, Any]):
    """The numbers of one device, or of all under `devices`. It is a dict; printed, a table."""

    def __repr__(self) -> str:
        """The most important numbers, a line for each."""
        return str(self)

    def __str__(self) -> str:
        """The most important numbers, a line for each."""
        if "off" in self:
            return f"Girih is off: {self['off']}"
        blocks = ["\n".join(_lines(device)) for device in self.devices()]
        return "\n\n".join(blocks) or f"Girih, {self.get('mode')}: no device was used yet"

    def _repr_html_(self) -> str:
        """The same for a notebook, with a bar for each device."""
        if not self.devices():
            return f"<pre>{html.escape(str(self))}</pre>"
        return "".join(map(_drawn, self.devices()))

    def devices(self) -> list[Mapping[str, Any]]:
        """The devices of which there are numbers."""
        if "devices" in self:
            return list(self["devices"])
        return [self] if "device" in self else []


def rows(device: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is said of a device: names, and numbers with their units."""
    reserved, peak = device["reserved"], device["reserved_peak"]
    yield "in use", f"{size(device['allocated'])}, {size(device['allocated_peak'])} at most"
    yield "reserved", f"{size(reserved)}, {size(peak)} at most"
    if peak > 0:
        share = percent(device["allocated_peak"], peak)
        yield "efficiency", f"{share}, peak in use by peak reserved"
    total = device["device_total"]
    yield "device", f"{size(device['device_free'])} free of {size(total)}"
    yield "plan", _plan(device)
    requests = device["hits"] + device["misses"]
    if requests > 0:
        yield "as planned", f"{percent(device['hits'], requests)} of {count(requests)} requests"
    yield "views", count(device["stitches"])
    calls = sum(device["calls"].values())
    yield "driver", f"{count(calls)} calls, {device['driver_seconds']:.2f} s"
    if (swap := device.get("swap")) and swap["copies_out"]:
        yield "swapped", f"{size(swap['bytes_out'])} out, {size(swap['bytes_in'])} in"
        yield "waited", f"{swap['waited_us'] / 1000:.1f} ms in {count(swap['waits'])} uses"
        if found := links(swap):
            yield "links", found
    if device["ooms"] > 0:
        yield "out of memory", f"{count(device['ooms'])} requests"


def links(swap: Mapping[str, Any]) -> str:
    """What the links of this machine were measured to carry; empty where nothing was."""
    ways = {"links_out": "out", "links_in": "in", "links_both": "both at once"}
    found = [f"{swap[name]:.1f} {way}" for name, way in ways.items() if swap[name] is not None]
    return f"{', '.join(found)} GB/s" if found else ""


def _plan(device: Mapping[str, Any]) -> str:
    plan = device["plan"]
    if plan is None:
        return f"none ({device['stage']})"
    return f"{size(plan['peak'])}, {100 * plan['gap']:.2f} % over the bound ({device['stage']})"


def _lines(device: Mapping[str, Any]) -> list[str]:
    lines = [f"Girih, {device['mode']}, cuda:{device['device']}"]
    return lines + [f"  {name:<14}{text}" for name, text in rows(device)]


def _drawn(device: Mapping[str, Any]) -> str:
    """A device as HTML: one bar, what its colours mean, and the numbers."""
    total = max(device["device_total"], 1)
    idle = device["reserved"] - device["allocated"]
    others = max(total - device["device_free"] - device["reserved"], 0)
    parts = {
        "in use": device["allocated"],
        "idle": idle,
        "others": others,
        "free": max(total - device["reserved"] - others, 0),
    }
    bar = "".join(
        f'<div style="width:{100 * part / total:.3f}%;background:{_COLOURS[name]}"'
        f' title="{name}: {html.escape(size(part))}"></div>'
        for name, part in parts.items()
    )
    legend = " &nbsp; ".join(
        f'<span style="color:{_COLOURS[name]};-webkit-text-stroke:.5px #555">&#9632;</span>'
        f" {name} {html.escape(size(part))}"
        for name, part in parts.items()
    )
    table = "".join(
        f'<tr><td style="text-align:left">{html.escape(name)}</td>'
        f'<td style="text-align:left">{html.escape(text)}</td></tr>'
        for name, text in rows(device)
    )
    head = html.escape(f"Girih, {device['mode']}, cuda:{device['device']}")
    return (
        f"<div><b>{head}</b>"
        '<div style="display:flex;height:14px;max-width:480px;border:1px solid #999">'
        f"{bar}</div><div>{legend}</div><table>{table}</table></div>"
    )
