"""Memory in one handle: a pool for each device, whose segments are allocations and not pages.

torch opens the scopes, as for any `MemPool`; the heap is told once what kind of pool it is. The
pools are kept as long as the process lives, so that what one scope has let go of serves the next.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from girih._errors import GirihError

_pools: dict[int, Any] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def scope(door: str, device: int | None) -> Iterator[Any]:
    """A scope of a device's pool; of the current device if none is said. Gives the pool.

    `door` is how Girih came under torch.
    """
    if door != "shim":
        raise GirihError(
            "see with `python -m girih doctor` why the shim is not there: memory in one handle "
            "needs pools, which torch has for Girih's shim alone"
        )
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise GirihError(
            "take memory in one handle before the capture of a graph: the graph would be "
            "replayed over memory that has gone back"
        )
    torch.cuda.init()
    number = torch.cuda.current_device() if device is None else device
    pool = _pool(torch, number)
    with torch.cuda.use_mem_pool(pool, number):
        yield pool


def _pool(torch: Any, device: int) -> Any:
    """The pool of a device, made now if it is the first time."""
    from girih import _native

    with _lock:
        if device not in _pools:
            # A pool is of the device that is current when it is made.
            with torch.cuda.device(device):
                pool = torch.cuda.MemPool()
            try:
                _native.keep_in_one_handle(device, tuple(pool.id))
            except RuntimeError as error:
                raise GirihError(str(error)) from error
            _pools[device] = pool
        return _pools[device]
