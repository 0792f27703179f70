"""What the driver's calls for pages cost the host while the GPU is idle, works, and copies.

    python gpu/facts/busy.py                  # 64 pages of 16 MiB
    python gpu/facts/busy.py --pages 128 --mib 2 --rounds 50 --loads idle,copies

Each round maps the pages one by one, gives access page by page or to all of them in one call, and
unmaps them page by page or all in one call. Then the same pages are mapped once more in a second
range of addresses that is reserved for it and given back, as a view of the lake is made and let go;
and the driver is asked how much is free. It does so while the GPU is idle (`idle`); while products
of matrices are queued, one long kernel after the other (`long`); while short kernels are launched
by another thread of the process, as a training step launches them (`short`); while pinned memory
is copied both ways (`copies`); and with long kernels and copies at once (`both`). Prints one JSON
object a line: median and 95th percentile of the microseconds a page, and of those a call for what
is done to all pages at once or to none.
"""

import argparse
import contextlib
import ctypes
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import torch

MIB = 1 << 20


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp, of which zeros mean the ordinary."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


DEVICE_MEMORY, READ_AND_WRITE = 1, 3
DRIVER = ctypes.CDLL("libcuda.so.1")


def call(name: str, *words: object) -> None:
    """Of the driver; raises what it returned if that is no success."""
    result = getattr(DRIVER, name)(*words)
    if result != 0:
        raise RuntimeError(f"{name} returned {result}")


class Pages:
    """A range of addresses, and pages to be mapped there."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.base = ctypes.c_uint64()
        self.reserve()
        here = Location(DEVICE_MEMORY, torch.cuda.current_device())
        self.access = Access(here, READ_AND_WRITE)
        properties = Properties(type=1, location=here)
        self.handles = [ctypes.c_uint64() for _ in range(count)]
        for handle in self.handles:
            size_t = ctypes.c_size_t(size)
            call("cuMemCreate", ctypes.byref(handle), size_t, ctypes.byref(properties), 0)

    def reserve(self) -> None:
        """Addresses for all pages."""
        size = ctypes.c_size_t(self.count * self.size)
        call("cuMemAddressReserve", ctypes.byref(self.base), size, *[ctypes.c_size_t(0)] * 3)

    def unreserve(self) -> None:
        """Gives them back."""
        call("cuMemAddressFree", self.base, ctypes.c_size_t(self.count * self.size))

    @contextlib.contextmanager
    def twice(self) -> Iterator[None]:
        """The pages stay mapped where they are; meanwhile this is another range of addresses."""
        for page in range(self.count):
            self.map(page)
        self.give_access(0, self.count)
        home, self.base = self.base, ctypes.c_uint64()
        try:
            yield
        finally:
            self.base = home
            self.unmap(0, self.count)

    def map(self, page: int) -> None:
        """One page at its place."""
        at = ctypes.c_uint64(self.base.value + page * self.size)
        call("cuMemMap", at, ctypes.c_size_t(self.size), ctypes.c_size_t(0), self.handles[page], 0)

    def give_access(self, first: int, count: int) -> None:
        """To so many pages in one call."""
        at = ctypes.c_uint64(self.base.value + first * self.size)
        size = ctypes.c_size_t(count * self.size)
        call("cuMemSetAccess", at, size, ctypes.byref(self.access), ctypes.c_size_t(1))

    def unmap(self, first: int, count: int) -> None:
        """So many pages in one call."""
        at = ctypes.c_uint64(self.base.value + first * self.size)
        call("cuMemUnmap", at, ctypes.c_size_t(count * self.size))


def micros(work: Callable[[], None]) -> float:
    """What the work takes on the host."""
    start = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - start)


def round_of(pages: Pages, seen: dict[str, list[float]]) -> None:
    """Maps all pages and unmaps them, twice: one by one, and at once where a call can."""

    def note(what: str, taken: float, count: int = 1) -> None:
        seen.setdefault(what, []).append(taken / count)

    every = range(pages.count)
    for page in every:
        note("map", micros(lambda page=page: pages.map(page)))  # type: ignore[misc]
        note("access", micros(lambda page=page: pages.give_access(page, 1)))  # type: ignore[misc]
    for page in every:
        note("unmap", micros(lambda page=page: pages.unmap(page, 1)))  # type: ignore[misc]
    for page in every:
        pages.map(page)
    note("access_at_once", micros(lambda: pages.give_access(0, pages.count)), pages.count)
    note("unmap_at_once", micros(lambda: pages.unmap(0, pages.count)), pages.count)
    with pages.twice():
        note("view_reserve", micros(pages.reserve))
        for page in every:
            note("view_map", micros(lambda page=page: pages.map(page)))  # type: ignore[misc]
        note("view_access", micros(lambda: pages.give_access(0, pages.count)))
        note("view_unmap", micros(lambda: pages.unmap(0, pages.count)))
        note("view_unreserve", micros(pages.unreserve))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        asks = [ctypes.byref(free), ctypes.byref(total)]
        note("memory_info", micros(lambda: call("cuMemGetInfo_v2", *asks)))


@contextlib.contextmanager
def idle() -> Iterator[None]:
    """Nothing runs."""
    torch.cuda.synchronize()
    yield


@contextlib.contextmanager
def long_kernels() -> Iterator[None]:
    """Products that take longer than the round are queued."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(400):
        a @ a
    yield
    torch.cuda.synchronize()


@contextlib.contextmanager
def short_kernels() -> Iterator[None]:
    """Another thread launches kernels of some microseconds, as fast as it can."""
    is_over = threading.Event()

    def launch() -> None:
        x = torch.zeros(1 << 20, device="cuda")
        while not is_over.is_set():
            for _ in range(100):
                x.add_(1)
            torch.cuda.current_stream().synchronize()

    thread = threading.Thread(target=launch)
    thread.start()
    time.sleep(0.05)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Copies:
    """Both ways at once, of pinned memory, on a stream each."""

    def __init__(self, gib: float = 1.0) -> None:
        count = int(gib * (1 << 30))
        self.host = [torch.empty(count, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.here = [torch.empty(count, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """About a second and a half of them is queued."""
        for _ in range(60):
            with torch.cuda.stream(self.streams[0]):
                self.host[0].copy_(self.here[0], non_blocking=True)
            with torch.cuda.stream(self.streams[1]):
                self.here[1].copy_(self.host[1], non_blocking=True)
        yield
        if all(stream.query() for stream in self.streams):
            raise RuntimeError("the copies were over before the round was: queue more")
        torch.cuda.synchronize()


def main() -> None:
    """Measures under each of the loads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loads", default="idle,long,short,copies,both")
    options = parser.parse_args()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    pages = Pages(options.pages, options.mib * MIB)
    copies = Copies()

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with long_kernels(), copies.load():
            yield

    loads = {"idle": idle, "long": long_kernels, "short": short_kernels}
    loads |= {"copies": copies.load, "both": both}
    for name in options.loads.split(","):
        load = loads[name]
        seen: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            with load():
                round_of(pages, seen)
        found = {
            what: [round(statistics.median(us), 1), round(statistics.quantiles(us, n=20)[-1], 1)]
            for what, us in seen.items()
        }
        about = {"card": torch.cuda.get_device_name(), "load": name}
        about |= {"mib": options.mib, "pages": options.pages}
        print(json.dumps(about | {"us": found}), flush=True)


if __name__ == "__main__":
    main()
