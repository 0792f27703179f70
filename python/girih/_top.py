"""`python -m girih top`: what the programs that run on Girih hold now.

It asks each process by its socket (`_live`). On a terminal the table is written again and again, a
process that has ended stays in it with its last numbers, and Ctrl-C leaves; elsewhere, and with
`--once` or `--json`, it is written once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from girih import _live
from girih._errors import GirihError
from girih._units import count, size

_WIDTH = 80
_HEAD = ("pid", "rank", "gpu", "mode", "in use", "reserved", "plan", "misses", "views")
_RIGHT_FROM = 4


@dataclasses.dataclass
class Seen:
    """A process, as it answered last."""

    said: dict[str, Any]
    state: str = "runs"
    """`runs`, `ended`, or `silent`: it lives, and does not answer."""


def main(words: list[str]) -> int:
    """Shows. Exits 0, or 1 if nothing runs on Girih."""
    parser = argparse.ArgumentParser(
        prog="python -m girih top",
        description="Shows what your programs that run on Girih hold now, on this machine. "
        "On a terminal it goes on until Ctrl-C, or until all have ended. "
        "Exits 1 if none is running.",
    )
    add = parser.add_argument
    add("pid", nargs="*", type=int, help="only these processes")
    add("--once", action="store_true", help="shows the table once")
    add("--interval", type=float, default=1.0, metavar="S", help="seconds between tables (1)")
    add("--json", action="store_true", help="prints one JSON object, once")
    options = parser.parse_args(words)
    if not 0.1 <= options.interval <= 3600:
        parser.error(f"--interval {options.interval}: between 0.1 and 3600 seconds")
    where = _live.folder()
    if where is None:
        print("girih: unset GIRIH_LIVE, or name the folder in it: it is empty", file=sys.stderr)
        return 2
    is_once = options.once or options.json or not sys.stdout.isatty()
    try:
        if is_once:
            return _show_once(where, options.pid, as_json=options.json)
        return _keep_showing(where, options.pid, options.interval)
    except GirihError as error:
        print(f"girih: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def look(where: Path, pids: list[int], before: Mapping[str, Seen] | None = None) -> dict[str, Seen]:
    """Asks every process; those of `before` that are gone are kept as ended."""
    before = before or {}
    now: dict[str, Seen] = {}
    for path in _live.sockets(where):
        pid = int(path.name.partition("-")[0] or 0)
        if pids and pid not in pids:
            continue
        last = before[path.name].said if path.name in before else {"pid": pid}
        try:
            said = _live.ask(path)
        except TimeoutError:
            now[path.name] = Seen(last, "silent")
            continue
        except OSError as error:
            raise GirihError(f"{path} cannot be asked: {error}") from error
        if said is not None:
            now[path.name] = Seen(said)
    ended = {name: Seen(seen.said, "ended") for name, seen in before.items() if name not in now}
    return {**ended, **now}


def _show_once(where: Path, pids: list[int], *, as_json: bool) -> int:
    seen = look(where, pids)
    if as_json:
        found = [{**one.said, "state": one.state} for one in seen.values()]
        print(json.dumps({"processes": found}))
    elif seen:
        print("\n".join(table(seen)))
    else:
        print(_nothing(pids))
    return 0 if seen else 1


def _keep_showing(where: Path, pids: list[int], interval: float) -> int:
    seen = look(where, pids)
    if not seen:
        print(_nothing(pids))
        return 1
    height = 0
    while True:
        lines = table(seen)
        # Up to where the last table began, and over it: nothing else on the screen is touched.
        up = f"\x1b[{height}A\r" if height else ""
        print(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", end="", flush=True)
        height = len(lines)
        if all(one.state == "ended" for one in seen.values()):
            print("All have ended.")
            return 0
        time.sleep(interval)
        seen = look(where, pids, seen)


def _nothing(pids: list[int]) -> str:
    if pids:
        return f"No process {' or '.join(map(str, pids))} of yours runs on Girih here."
    return (
        "No process of yours runs on Girih here. Start one with\n"
        "python -m girih run train.py, or with girih.enable() in the program."
    )


def table(seen: Mapping[str, Seen]) -> list[str]:
    """The lines of the table, and below it what each process is."""
    rows: list[tuple[str, ...]] = []
    below: dict[str, list[Seen]] = {}
    # Workers that load data are there too, and hold nothing.
    idle = [one for one in seen.values() if one.state == "runs" and not _devices(one)]
    if len(idle) == len(seen):
        idle = []
    for one in seen.values():
        if one in idle:
            continue
        rows += _rows(one)
        words = one.said.get("program")
        program = shlex.join(words) if words else "a program that does not answer"
        states = {"ended": " (has ended)", "silent": " (does not answer: stopped, or busy)"}
        below.setdefault(program + states.get(one.state, ""), []).append(one)
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    lines = [_line(row, widths) for row in (_HEAD, *rows)]
    lines.insert(1, "-" * len(lines[0]))
    notes = [_note(text, of) for text, of in below.items()]
    if idle:
        notes.append(f"{len(idle)} more that hold nothing: {_pids(idle)}")
    return [*lines, "", *map(_cut, notes)]


def _note(text: str, of: list[Seen]) -> str:
    """The processes of a program, how far they are, and what the program is."""
    pids = _pids(of)
    steps = max(one.said.get("steps", 0) for one in of)
    return f"{pids}: step {count(steps)}: {text}" if steps else f"{pids}: {text}"


def _pids(of: list[Seen]) -> str:
    return ", ".join(str(one.said["pid"]) for one in of)


def _devices(one: Seen) -> list[dict[str, Any]]:
    return list(one.said.get("heaps", {}).get("devices", []))


def _rows(one: Seen) -> list[tuple[str, ...]]:
    said = one.said
    rank = said.get("rank")
    begin = (str(said["pid"]), "-" if rank is None else str(rank))
    devices = _devices(one)
    mode = said.get("heaps", {}).get("mode", "-")
    if not devices:
        return [(*begin, "-", mode, "-", "-", "-", "-", "-")]
    return [
        (
            *begin,
            str(device["device"]),
            device["mode"],
            size(device["allocated"]),
            size(device["reserved"]),
            size(device["plan"]["peak"]) if device["plan"] else "-",
            _short(device["misses"]),
            _short(device["stitches"]),
        )
        for device in devices
    ]


def _short(number: int) -> str:
    """A count in at most six characters."""
    for unit, scale in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 10 * scale:
            return f"{number / scale:,.0f} {unit}"
    return count(number)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        text.rjust(width) if index >= _RIGHT_FROM or index == 0 else text.ljust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
