"""Random work on GPU memory for minutes, in which every byte is checked.

    python -m girih run --mode stitch gpu/soak.py --minutes 10
    python -m girih run --mode auto gpu/soak.py --minutes 2 --threads 4 --out soak.json

Threads take tensors of random sizes on streams of their own, write a tag of their own to each, read
them now and then on another stream, and before they let go of one look whether every element still
has its tag. Memory that two tensors share, that a stream uses too early, or that is unmapped too
soon shows as a wrong tag or as a crash. The card is kept nearly full; running out is a part of it.
At the end everything is freed, and every counter must be back to zero.

Whatever ends it, something is known: every 15 seconds a line with the counts so far goes to
standard error and, with `--out`, the results so far to a file. SIGTERM ends it with a results line.
It ends a little before its minutes are over, counted from the start of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

MIB = 1 << 20
# Between two lines that say how far it has come.
REPORT_SECONDS = 15.0
# What letting go of a full card takes at most; for a short run, this part of it.
END_SECONDS_MAX, END_PART = 30.0, 0.2
# Between a signal and the end of a process that does not come to an end by itself.
GRACE_SECONDS = 5.0
TERMINATED = 128 + signal.SIGTERM


@dataclass
class Worker:
    """A thread with its streams, its tensors and what it has seen."""

    seed: int
    share: int
    """Bytes that it holds at most."""
    until: float
    steps: int
    stop: threading.Event
    leads: bool = False
    """It tells Girih of steps."""
    operations: int = 0
    failed: int = 0
    held: int = 0
    seen: int = 0
    """Wrong elements when it last waited for the card."""
    error: str | None = None
    live: list[tuple[torch.Tensor, int, torch.cuda.Stream]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Its own numbers, its own streams, and a count of wrong elements on the card."""
        self.chance = random.Random(self.seed)
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        # One for each stream: they are in no order.
        self.wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in self.streams]
        torch.cuda.synchronize()

    def size(self) -> int:
        """Bytes: of all magnitudes, and often one that came before."""
        if self.chance.random() < 0.5:
            return self.chance.choice((3, 7, 24, 40, 129, 400, 1000)) * MIB
        return int(2 ** self.chance.uniform(9, 31))

    def take(self) -> None:
        """A new tensor, full of its tag."""
        size = self.size()
        while self.live and self.held + size > self.share:
            self.give()
        stream, tag = self.chance.choice(self.streams), self.chance.randrange(1 << 30)
        try:
            with torch.cuda.stream(stream):
                tensor = torch.empty(max(size // 4, 1), dtype=torch.int32, device="cuda")
                tensor.fill_(tag)
        except torch.OutOfMemoryError:
            self.failed += 1
            return
        self.live.append((tensor, tag, stream))
        self.held += tensor.nbytes

    def look(self, at: int, stream: torch.cuda.Stream) -> None:
        """Counts the elements that have lost their tag, on a stream, in pieces."""
        tensor, tag, own = self.live[at]
        if stream != own:
            stream.wait_stream(own)
            tensor.record_stream(stream)
        try:
            with torch.cuda.stream(stream):
                for piece in tensor.split(8 * MIB):
                    self.wrong[self.streams.index(stream)] += torch.count_nonzero(piece != tag)
        except torch.OutOfMemoryError:
            self.failed += 1

    def give(self) -> None:
        """Lets go of a tensor, after a last look at it."""
        at = self.chance.randrange(len(self.live))
        self.look(at, self.live[at][2])
        tensor, _, _ = self.live.pop(at)
        self.held -= tensor.nbytes

    def is_over(self) -> bool:
        """True if nothing new is to be taken."""
        is_late = time.monotonic() >= self.until
        return is_late or self.operations >= self.steps or self.stop.is_set()

    def count(self) -> None:
        """Waits for the card, and reads what it has counted."""
        torch.cuda.synchronize()
        self.seen = sum(int(count.item()) for count in self.wrong)

    def step(self) -> None:
        """Ends a step, if this is the worker that does: by steps views become stale."""
        if self.leads and "girih" in sys.modules:
            import girih

            with girih.step():
                pass

    def run(self) -> None:
        """Works until the time is over."""
        try:
            while not self.is_over():
                self.operations += 1
                kind = self.chance.random()
                if kind < 0.5 or not self.live:
                    self.take()
                elif kind < 0.9:
                    self.give()
                elif kind < 0.998:
                    at, stream = (
                        self.chance.randrange(len(self.live)),
                        self.chance.choice(self.streams),
                    )
                    self.look(at, stream)
                else:
                    torch.cuda.empty_cache()
                if self.operations % 200 == 0:
                    # The host must not run ahead for ever.
                    self.count()
                    self.step()
            while self.live:
                self.give()
            self.count()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.live.clear()


class Reporter(threading.Thread):
    """Says how far the workers have come, and ends the process if they do not.

    It asks neither the card nor the allocator: it must speak if these hang.
    """

    def __init__(self, workers: list[Worker], out: Path | None, begun: float, last: float) -> None:
        super().__init__(daemon=True)
        self.workers, self.out, self.begun, self.last = workers, out, begun, last
        self.stop = workers[0].stop
        self.is_terminated = self.is_over = False
        self.keeping = threading.Lock()
        # A signal writes a byte, even while the main thread waits for the card.
        self.reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def so_far(self) -> dict[str, object]:
        """The counts that need no card."""
        workers = self.workers
        return {
            "operations": sum(worker.operations for worker in workers),
            "out_of_memory": sum(worker.failed for worker in workers),
            "wrong_elements": sum(worker.seen for worker in workers),
            "errors": [worker.error for worker in workers if worker.error],
            "held": sum(worker.held for worker in workers),
            "seconds": round(time.monotonic() - self.begun, 1),
        }

    def keep(self, result: dict[str, object]) -> None:
        """Writes the results to the file, whole or not at all. Nothing replaces the last ones."""
        with self.keeping:
            if self.out and not self.is_over:
                new = self.out.with_name(self.out.name + ".new")
                new.write_text(json.dumps(result) + "\n")
                new.replace(self.out)
            self.is_over = bool(result["complete"])

    def result(self, more: dict[str, object]) -> None:
        """Prints the results line, and keeps it. The last one of a run counts."""
        found = self.so_far() | more
        self.keep(found)
        print("RESULT " + json.dumps(found), flush=True)

    def run(self) -> None:
        """Reports until the process ends."""
        while not self.is_over:
            left = self.last - time.monotonic()
            ready, _, _ = select.select([self.reader], [], [], min(REPORT_SECONDS, max(left, 0)))
            if ready and signal.SIGTERM in os.read(self.reader, 64):
                self.end("SIGTERM", TERMINATED)
            elif time.monotonic() >= self.last:
                self.end("it did not come to an end by itself", 1)
            elif not ready:
                found = self.so_far()
                print("SO FAR " + json.dumps(found), file=sys.stderr, flush=True)
                self.keep(found | {"complete": False})

    def end(self, reason: str, status: int) -> None:
        """Ends the process. After a signal it has a moment to come to an end by itself."""
        self.is_terminated = status == TERMINATED
        self.result({"complete": False, "ended": reason})
        if self.is_terminated:
            self.stop.set()
            time.sleep(GRACE_SECONDS)
        os._exit(status)


def age() -> float:
    """Seconds since this process was started; 0 where the system does not say."""
    try:
        # Behind the name, which may have spaces: the 22nd field is the start, in ticks since boot.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - start
    return seconds if 0 <= seconds < 600 else 0.0


def girih_stats() -> dict[str, object] | None:
    """What Girih says that it did; None without it."""
    if "girih" not in sys.modules:
        return None
    import girih

    found = girih.stats(torch.cuda.current_device())
    return {name: found[name] for name in ("mode", "stitches", "retries", "calls")}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--operations", type=int, default=1 << 60, help="of each thread at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gib", type=float, default=0.0, help="of all threads; 0: all of the card")
    parser.add_argument("--out", type=Path, help="where the results so far are kept")
    return parser.parse_args()


def work(workers: list[Worker]) -> None:
    """Runs the threads until the last one has ended."""
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def left_behind(workers: list[Worker]) -> dict[str, int]:
    """The counters when everything is freed, which must be back to zero."""
    for worker in workers:
        worker.wrong.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    statistics = torch.cuda.memory_stats()
    names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
    return {name: statistics[f"{name}.all.current"] for name in names}


def main() -> int:
    """Runs the threads, and says what was seen."""
    options = arguments()
    begun = time.monotonic() - age()
    seconds = 60 * options.minutes
    ending = min(END_SECONDS_MAX, END_PART * seconds)
    free, _ = torch.cuda.mem_get_info()
    # A little more than there is, so that memory runs out now and then.
    bytes_of_all = int(options.gib * (1 << 30)) or int(1.02 * free)
    share = bytes_of_all // options.threads
    until, stop = begun + seconds - ending, threading.Event()
    seeds = range(options.seed, options.seed + options.threads)
    workers = [
        Worker(seed, share, until, options.operations, stop, leads=seed == seeds[0])
        for seed in seeds
    ]
    # It ends by itself before this; if it does not, it is ended in time.
    reporter = Reporter(workers, options.out, begun, until + ending / 2)
    reporter.start()
    work(workers)
    more: dict[str, object] = {"complete": not reporter.is_terminated}
    left: dict[str, int] = {}
    try:
        for worker in workers:
            worker.count()
        peak = torch.cuda.max_memory_reserved()
        left = left_behind(workers)
        more |= {"reserved_peak": peak, "left": left, "girih": girih_stats()}
    except Exception as error:
        # After an access to memory that is not there the card answers nothing any more.
        workers[0].error = workers[0].error or f"{type(error).__name__}: {error}"
    reporter.result(more)
    if reporter.is_terminated:
        return TERMINATED
    found = any(worker.seen or worker.error for worker in workers)
    return int(found or any(left.values()))


if __name__ == "__main__":
    sys.exit(main())
