"""How a run may end: killed and resumed, or in any of the ways in which a process leaves.

```text
 killed   step ... X          a second launch: checkpoint, step ...
 exits    step ... ─► by sys.exit, an error, a signal, within a capture, beside threads, ...
```
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from training import MIB, STEPS, Run

# Ends a run that waits for a signal which does not come.
STEPS_MAX = 3000


def killed(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    """Saves every second step, and goes on from there if it finds a checkpoint.

    FAULTS_KILL in the environment, `STEP:LAYER:SECONDS`, has it killed before that layer of that
    step, or with a layer of -1 so many seconds after the step. Both launches then have the same
    arguments, by which Girih knows them as the same run.
    """
    words = os.environ.get("FAULTS_KILL", "-1:-1:0").split(":")
    last, place, seconds = int(words[0]), int(words[1]), float(words[2])
    path = Path(arguments.folder) / "checkpoint.pt"
    start = run.load(path) if path.exists() else 0

    def within(layer: int) -> None:
        if layer == place:
            os.kill(os.getpid(), signal.SIGKILL)

    for index in range(start, STEPS):
        run.is_patient = index != last
        run.step(index, within=within if index == last else None)
        if index == last:
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGKILL)
        if index % 2 == 1:
            run.save(path, index + 1)
    return {"start": start}


HELD: list[Any] = []


class Cycle:
    """Holds a tensor and itself."""

    def __init__(self) -> None:
        self.tensor = torch.ones(MIB, device="cuda")
        self.me = self


def leave_alive() -> None:
    """Tensors, streams, events, a graph and an unfinished backward pass stay alive to the end."""
    side = torch.cuda.Stream()
    source = torch.ones(MIB, device="cuda", requires_grad=True)
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        late = source * 2
    source.record_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = torch.ones(MIB, device="cuda") * 3
    graph.replay()
    event = torch.cuda.Event()
    event.record()
    HELD.extend([source, late, side, graph, output, event, (source.exp() * late).sum()])
    for _ in range(3):
        Cycle()


def leave_threads(seconds: float) -> None:
    """Threads allocate for so long, while this one leaves.

    They end before the interpreter does: one that it ends within a function of torch takes the
    process with it, under every allocator.
    """
    end = time.monotonic() + seconds

    def work() -> None:
        held: list[torch.Tensor] = []
        while time.monotonic() < end:
            held.append(torch.full((MIB,), 3, dtype=torch.uint8, device="cuda"))
            del held[:-4]

    for _ in range(3):
        threading.Thread(target=work).start()
    time.sleep(0.02)


def signal_later(number: int, seconds: float) -> None:
    """Sends a signal to this process in a while; again, should a callback have swallowed it."""

    def send() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), number)
        time.sleep(5)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def leave_in_capture(kind: str) -> None:
    """Ends while a graph is captured."""
    inputs = torch.ones(MIB, device="cuda")
    with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
        HELD.append((inputs * 2).relu())
        if kind == "capture_os_exit":
            os._exit(3)
        sys.exit(7)


def leave(kind: str, delay: float) -> None:
    """Ends the process, or sees to it that it ends soon."""
    if kind == "exception":
        raise KeyError("me")
    if kind in ("sigterm", "sigint"):
        signal_later(signal.SIGTERM if kind == "sigterm" else signal.SIGINT, delay)
        return
    if kind.startswith("capture"):
        leave_in_capture(kind)
    if kind.startswith("threads"):
        leave_threads(0.3)
    if kind == "live_tensors":
        leave_alive()
    if kind == "planning":
        time.sleep(delay)
    if kind.endswith("os_exit"):
        os._exit(3)
    sys.exit(7)


def exits(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ends in the way and at the moment that it is told."""
    run.is_patient = arguments.kind != "planning"

    def within(layer: int) -> None:
        if layer == arguments.layer:
            leave(arguments.kind, arguments.delay)

    for index in range(STEPS_MAX):
        run.step(index, within=within if index == arguments.at else None)
        # A layer of -1: between two steps.
        if index == arguments.at and arguments.layer < 0:
            leave(arguments.kind, arguments.delay)
    return {}
