"""What may happen in and between the steps of a run: the program that `gpu/faults.py` starts.

    python gpu/faulty/program.py extra_kept
    python -m girih run --mode auto gpu/faulty/program.py extra_kept

It prints `loss STEP HEX` after each step, and `RESULT {...}` at its end, if it comes to that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ends import exits, killed
from training import FAULT, MIB, SHAPES, STEPS, Run


def plain(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """Nothing happens."""
    for index in range(STEPS):
        run.step(index)
    return {}


def extra(run: Run, *, is_kept: bool) -> None:
    """A request more in two iterations: of a size that no other has, then of a common one."""
    shape = run.shape
    sizes = {
        FAULT: ("odd", 3_333_333),
        FAULT + 3: ("common", 4 * shape.batch * shape.length * shape.width),
    }

    def within(layer: int) -> None:
        if layer == 2 and is_kept:
            run.guards.add(size)
        elif layer == 2:
            torch.full((size,), 9, dtype=torch.uint8, device="cuda")

    for index in range(STEPS):
        label, size = sizes.get(index, ("", 0))
        run.step(index, within=within if size else None, label=label)


def extra_kept(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """A request more in an iteration, which stays alive."""
    extra(run, is_kept=True)
    return {}


def extra_freed(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """A request more in an iteration, which is freed at once."""
    extra(run, is_kept=False)
    return {}


def evaluation(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """The model is evaluated twice, on batches twice as large."""
    found = []
    for index in range(STEPS):
        run.step(index)
        if index in (FAULT, FAULT + 2):
            run.model.eval()
            with torch.no_grad():
                for seed in (1, 2):
                    torch.manual_seed(seed)
                    size = (2 * run.shape.batch, run.shape.length)
                    ids = torch.randint(0, run.shape.words, size, device="cuda")
                    found.append(run.model(ids).item().hex())
            run.model.train()
            run.note("evaluation")
    return {"evaluated": found}


def checkpoint(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    """Model and optimizer are saved, loaded, compared, and trained on."""
    path = Path(arguments.folder) / "checkpoint.pt"
    is_equal = True
    for index in range(STEPS):
        run.step(index)
        if index == FAULT:
            run.save(path, index + 1)
            before = run.checksum()
            run.load(path)
            is_equal = run.checksum() == before
            path.unlink()
            run.note("checkpoint")
    return {"is_equal": is_equal}


def skipped_step(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """The program leaves out the optimizer once."""
    for index in range(STEPS):
        run.step(index, optimizes=index != FAULT)
    return {}


def scaler_skips(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """A gradient overflows, and `GradScaler` leaves out the optimizer."""
    run.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scales = []
    for index in range(STEPS):
        run.step(index, factor=math.inf if index == FAULT else 1.0)
        scales.append(run.scaler.get_scale())
    return {"scales": scales}


def batch_size(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """The batch becomes smaller, then larger than ever, then what it was."""
    usual = run.shape.batch
    sizes = {7: 5, 8: 5, 9: 12, 10: 12}
    for index in range(STEPS):
        run.step(index, batch=sizes.get(index, usual))
    return {}


def scribble(number: int, is_over: threading.Event, report: dict[str, Any]) -> None:
    """Allocates, writes patterns, checks them and frees, until it is over. On a thread."""
    sizes = torch.Generator().manual_seed(number)
    held: list[tuple[torch.Tensor, int]] = []
    # The first works on the stream of the training, the second on its own.
    stream = torch.cuda.Stream() if number else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        while not is_over.is_set():
            size = 1 << int(torch.randint(9, 24, (), generator=sizes))
            value = report["rounds"] % 251
            held.append((torch.full((size,), value, dtype=torch.uint8, device="cuda"), value))
            report["rounds"] += 1
            if len(held) > 8:
                tensor, value = held.pop(report["rounds"] % len(held))
                report["wrong"] += not bool((tensor == value).all())
        stream.synchronize()


def threads(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """Two threads allocate, write, check and free while the main one trains."""
    is_over = threading.Event()
    reports: list[dict[str, Any]] = [{"rounds": 0, "wrong": 0} for _ in range(2)]
    workers = [
        threading.Thread(target=scribble, args=(number, is_over, report))
        for number, report in enumerate(reports)
    ]
    for index in range(STEPS):
        if index == FAULT - 2:
            for worker in workers:
                worker.start()
        run.step(index)
    is_over.set()
    for worker in workers:
        worker.join()
    return {"reports": reports}


def record_stream(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """A slow side stream reads tensors that are freed and written over meanwhile."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    counts = (64 << 10, MIB, 5 * MIB, 33 * MIB)
    copies: list[tuple[torch.Tensor, int]] = []
    wrong = reused = rounds = 0

    def within(layer: int) -> None:
        nonlocal reused, rounds
        count, value = counts[layer % len(counts)], 1 + rounds % 200
        source = torch.full((count,), value, dtype=torch.uint8, device="cuda")
        copy = torch.empty_like(source)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            copy.copy_(source)
        source.record_stream(side)
        address = source.data_ptr()
        del source
        # Of the same size, on the first stream, and written to while the side stream still sleeps.
        thief = torch.full((count,), 255, dtype=torch.uint8, device="cuda")
        reused += thief.data_ptr() == address
        rounds += 1
        copies.append((copy, value))

    for index in range(STEPS):
        run.step(index, within=within)
        torch.cuda.synchronize()
        wrong += sum(not bool((copy == value).all()) for copy, value in copies)
        copies.clear()
    return {"rounds": rounds, "wrong": wrong, "reused": reused}


# ---- out of memory ----


def oom_giant(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """A request larger than the card: caught inside a pass, and thrown through one."""
    total = torch.cuda.get_device_properties(0).total_memory
    texts: list[str] = []

    def asks(layer: int) -> None:
        if layer == 2:
            torch.empty(total + total // 2, dtype=torch.uint8, device="cuda")

    def asks_and_catches(layer: int) -> None:
        try:
            asks(layer)
        except torch.OutOfMemoryError as error:
            texts.append(str(error))

    ran_out = False
    for index in range(STEPS):
        if index == FAULT:
            run.step(index, within=asks_and_catches, label="caught")
        elif index == FAULT + 2:
            ran_out = run.attempt(index, asks, label="thrown")
        else:
            run.step(index)
    return {"texts": texts, "ran_out": ran_out}


def oom_fraction(run: Run, _: argparse.Namespace) -> dict[str, Any]:
    """The limit of the process falls to just above what is in use, while steps go on."""
    total = torch.cuda.get_device_properties(0).total_memory
    texts: list[str] = []

    def limit() -> None:
        allowed = torch.cuda.memory_allocated() + 32 * MIB
        torch.cuda.set_per_process_memory_fraction(allowed / total)

    def asks(layer: int) -> None:
        # More than anybody caches; the card has it, the limit does not.
        if layer == 2:
            try:
                torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                texts.append(str(error))

    ran_out = False
    for index in range(STEPS):
        if index == FAULT:
            limit()
            run.attempt(index, asks, label="limited")
            torch.cuda.set_per_process_memory_fraction(1.0)
        elif index == FAULT + 3:
            limit()
            torch.cuda.empty_cache()
            ran_out = run.attempt(index, label="limited and emptied")
            torch.cuda.set_per_process_memory_fraction(1.0)
        else:
            run.step(index)
    return {"texts": texts, "ran_out": ran_out}


# Each takes the run and the command line, and gives what it has to say besides the run's numbers.
SCENARIOS: dict[str, Callable[[Run, argparse.Namespace], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        plain,
        extra_kept,
        extra_freed,
        evaluation,
        checkpoint,
        skipped_step,
        scaler_skips,
        batch_size,
        threads,
        record_stream,
        oom_giant,
        oom_fraction,
        killed,
        exits,
    )
}


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--model", choices=SHAPES, default="small")
    parser.add_argument("--folder", default=".", help="where checkpoints go")
    parser.add_argument("--kind", help="exits: how")
    parser.add_argument("--at", type=int, default=FAULT, help="exits: in which step")
    parser.add_argument("--layer", type=int, default=-1, help="exits: before which layer")
    parser.add_argument("--delay", type=float, default=0.0, help="exits: seconds")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=False)
    # Filling fresh memory would hide what an allocator does wrong.
    torch.utils.deterministic.fill_uninitialized_memory = False
    run = Run(arguments.model)
    told = SCENARIOS[arguments.scenario](run, arguments)
    print("RESULT " + json.dumps(run.result() | {"told": told}), flush=True)


if __name__ == "__main__":
    main()
