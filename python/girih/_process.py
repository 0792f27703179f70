"""Girih in this process: enabled once, by the program or by what launched it, until its end.

```text
 girih.enable(...)            ┐
 python -m girih run ...      ├─► settings ─► configure ─► install ─► hooks ─► ... ─► finish
 GIRIH_MODE, import girih     ┘                heaps        torch
```

A launcher outranks the program: where both speak, the launcher's settings hold, so that one can try
another mode without an edit. It speaks before torch is imported, and is heard when it is.

Where something is missing that Girih needs (a driver, torch, CUDA in torch) the program is not to
suffer: Girih is off in this process, a warning says why, and torch is as it was.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from girih import (
    _hooks,
    _integrations,
    _key,
    _live,
    _modules,
    _paths,
    _ranks,
    _run_time,
    _saved,
    _states,
    _terminate,
)
from girih._errors import GirihError, GirihWarning, UnavailableError
from girih._imports import when_imported
from girih._install import install
from girih._settings import Settings
from girih._version import VERSION
from girih._watch import Watch

log = logging.getLogger("girih")


@dataclasses.dataclass
class Enabled:
    """Girih as it is in this process."""

    settings: Settings
    """Those that hold: of the mode `off` where something is missing."""
    door: str
    """How it came under torch: "shim", "plug", or "none" where it is off."""
    by_launcher: bool
    watch: Watch
    pid: int
    asked: Settings
    """Those that were asked for."""
    missing: str | None = None
    """What is missing here, so that Girih is off though another mode was asked for."""
    live: _live.Server | None = None
    """Where `python -m girih top` asks; None if it cannot, or is not to."""


_enabled: Enabled | None = None
_armed: Settings | None = None
_at_exit: list[Callable[[], None]] = []
# The process whose end they are for: a forked child has an end of its own.
_at_exit_pid = 0
# Something is to be written at the end that no trace asks for.
_leaves_files = False


def enabled() -> Enabled | None:
    """Girih as it is in this process; None if it is not."""
    return _enabled


def enable(settings: Settings, *, by_launcher: bool = False) -> None:
    """Makes Girih the allocator of this process, with these settings.

    Where something that it needs is missing, it warns, and Girih is off.

    # Raises
    GirihError, if what is asked for cannot be done. torch is then as it was.
    """
    global _enabled
    if _enabled is not None:
        _refuse_change(_enabled, settings)
        return
    if _armed is not None and not by_launcher:
        log.debug("the launcher's settings hold: %s", _armed)
        settings, by_launcher = _armed, True
    asked, watch, door, missing = settings, _NO_WATCH, "none", None
    if settings.mode != "off":
        try:
            door = _put_under_torch(settings)
        except UnavailableError as error:
            missing = str(error)
            settings = dataclasses.replace(settings, mode="off")
        else:
            watch = _set_hooks(settings)
    log.info("the mode is %s, the door to torch: %s", settings.mode, door)
    _enabled = Enabled(settings, door, by_launcher, watch, os.getpid(), asked, missing)
    _split_long_contexts(asked)
    if settings.mode != "off" and settings.option("live", True):
        _enabled.live = _listen()
    atexit.register(_finish)
    if asked.mode != "off" and (settings.trace or _leaves_files):
        _terminate.before_dying(_finish)
    if missing is not None:
        # Behind `girih.enable`, or the line that imports torch.
        _warn_of_being_off(missing, stacklevel=4)


def arm(settings: Settings, *, is_strict: bool) -> None:
    """Enables Girih once torch is imported, which may be never.

    If it then cannot be done, a strict launcher's program ends with the error; another's goes on
    with torch's own allocator, and a warning says so. What this machine or this torch lacks is no
    error to either.
    """
    global _armed
    _armed = settings

    def ready(_torch: Any) -> None:
        try:
            enable(settings, by_launcher=True)
        except GirihError as error:
            if is_strict:
                raise
            _warn_of_being_off(str(error), stacklevel=3)
        except Exception as error:
            # What nobody thought of must not keep a program from importing torch.
            log.debug("enabling failed", exc_info=True)
            _warn_of_being_off(
                f"enabling it failed, which is a bug of Girih ({type(error).__name__}: {error})",
                stacklevel=3,
            )

    when_imported("torch", ready)


def _warn_of_being_off(reason: str, *, stacklevel: int) -> None:
    warnings.warn(
        f"Girih is not enabled, the program runs on torch's own allocator: {reason}",
        GirihWarning,
        stacklevel=stacklevel,
    )


def at_exit(callback: Callable[[], None], *, writes: bool) -> None:
    """Calls `callback` at the end of the process, while the heaps can still be asked.

    It is called once, and even if Girih was never enabled. If it `writes` something, SIGTERM is an
    end too in a process whose program imports torch.
    """
    global _leaves_files, _at_exit_pid
    if not _at_exit:
        # The last of all: what is registered later runs before, and `_finish` with it.
        atexit.register(_call_at_exit)
        _at_exit_pid = os.getpid()
    _at_exit.append(callback)
    _leaves_files = _leaves_files or writes


def _call_at_exit() -> None:
    if _at_exit_pid == os.getpid():
        while _at_exit:
            _at_exit.pop(0)()


def _listen() -> _live.Server | None:
    """Lets `python -m girih top` ask. Where it cannot, nothing else is the worse for it."""
    where = _live.folder()
    if where is None:
        return None
    try:
        return _live.Server(where, _answer)
    except (OSError, RuntimeError):
        log.debug("`python -m girih top` cannot see this process", exc_info=True)
        return None


def _answer() -> str:
    """What this process says of itself to who looks: JSON, put together without reading it."""
    from girih import _native

    process, rank = _require(), _ranks.rank()
    known = {
        "pid": process.pid,
        "program": [str(word) for word in getattr(sys, "argv", [])],
        "rank": None if rank is None else rank.number,
        "world": None if rank is None else rank.world,
        "steps": process.watch.steps.count,
        "door": process.door,
    }
    return f'{json.dumps(known)[:-1]}, "heaps": {_native.report()}}}'


def report(device: int | None = None) -> dict[str, Any]:
    """What the heaps did and hold. Where Girih is off, the reason is under `off`."""
    process = _require()
    if process.settings.mode == "off":
        return off_report(process.missing or "the mode `off` was asked for")
    from girih import _native

    try:
        found: dict[str, Any] = json.loads(_native.report(device))
    except RuntimeError as error:
        raise GirihError(str(error)) from error
    found["door"] = process.door
    found["steps"] = process.watch.steps.count
    return found


def off_report(reason: str) -> dict[str, Any]:
    """The report of a process in which torch has its own allocator."""
    return {"mode": "off", "off": reason, "devices": []}


def used_devices() -> list[int]:
    """The devices that the program has asked for memory."""
    return [device["device"] for device in report().get("devices", [])]


def _require() -> Enabled:
    if _enabled is None:
        raise GirihError(
            "call girih.enable() before CUDA starts, or start the program with "
            "`python -m girih run`: Girih is not enabled in this process"
        )
    return _enabled


def _split_long_contexts(settings: Settings) -> None:
    """Also where Girih cannot be the allocator: the split needs torch and nothing else."""
    if settings.option("long_context", None) is None or settings.mode == "off":
        return
    try:
        from girih._long import found
    except ImportError:
        return  # there is no torch: there will be no model
    found.install(
        settings.options["long_context"],
        settings.options.get("gpu_budget"),
        mlp_in_tiles=settings.option("mlp_in_tiles", False),
    )


def _refuse_change(process: Enabled, settings: Settings) -> None:
    if process.by_launcher:
        log.debug("the launcher's settings hold: %s", process.settings)
    elif process.asked != settings:
        raise GirihError(
            "call enable() once: Girih is enabled already, with other settings, which cannot "
            f"change while the process lives: {process.asked}"
        )


def _put_under_torch(settings: Settings) -> str:
    if not sys.platform.startswith("linux"):
        raise UnavailableError(f"use Linux, which Girih needs: this is {sys.platform}")
    is_simulated = "sim" in settings.options
    if not is_simulated and not has_driver():
        raise UnavailableError(
            "see with `python -m girih doctor` what is missing: there is no NVIDIA driver on this "
            "machine (libcuda.so.1 cannot be loaded)"
        )
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"install torch for CUDA, it cannot be imported: {error}") from error
    if torch.version.cuda is None:
        raise UnavailableError(
            "install a build with CUDA (https://pytorch.org/get-started/locally): "
            f"torch {torch.__version__} is built without CUDA"
        )
    try:
        from girih import _native
    except ImportError as error:
        raise UnavailableError(
            f"install girih again: the extension of Girih cannot be loaded: {error}"
        ) from error
    _refuse_late(torch)
    key = _key.of_process(str(torch.__version__), VERSION)
    version = str(torch.__version__).partition("+")[0]
    try:
        _native.configure(settings.with_plan(key).for_heaps(key=key, torch=version))
    except ValueError as error:
        raise GirihError(str(error)) from error
    show_warnings()
    door = install(torch)
    _run_time.follow(torch, door, _native.change_settings)
    return door


def _refuse_late(torch: Any) -> None:
    """Memory that another allocator gave cannot be taken over."""
    if torch.cuda.is_initialized():
        raise GirihError(
            "call girih.enable() before the first use of CUDA, right after `import torch`: CUDA "
            "has started already, and its memory cannot change hands"
        )
    # A program that forks after CUDA has started cannot use CUDA in the child at all.
    if getattr(torch.cuda, "_is_in_bad_fork", bool)():
        raise GirihError(
            "spawn this process, do not fork it: a fork of a process that uses CUDA cannot use it"
        )
    if torch.cuda.get_allocator_backend() == "pluggable":
        raise GirihError(
            "remove the other allocator, or Girih, for there can be one: one is in torch already "
            "(CUDAPluggableAllocator, RMM or the like)"
        )


def has_driver() -> bool:
    """True if there is an NVIDIA driver. CUDA is not started for it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _set_hooks(settings: Settings) -> Watch:
    """Hooks are a help: a torch in which they cannot be set loses marks, and nothing else."""
    import torch

    from girih import _native

    watch = Watch(_native.mark)
    if "gpu_budget" in settings.options:
        _saved.install(torch)
    elif settings.swaps_at_the_edge:
        watch.before_mark = _saved.install_when_wanted(torch).set_if_wanted
    try:
        if settings.option("hooks", True):
            _hooks.install(torch, watch)
            if "gpu_budget" in settings.options or settings.swaps_at_the_edge:
                _states.install(torch)
            _integrations.install(watch)
        if settings.option("modules", False):
            _modules.install(torch, watch)
    except Exception as error:
        warnings.warn(
            "say with `with girih.step():` where steps begin: not all hooks could be set in torch "
            f"{torch.__version__} ({type(error).__name__}: {error})",
            GirihWarning,
            stacklevel=4,
        )
    return watch


def _finish() -> None:
    """The end of the process."""
    if _enabled is None or _enabled.pid != os.getpid():
        return
    _call_at_exit()
    if _enabled.live is not None:
        _enabled.live.stop()
    if _enabled.settings.mode == "off":
        return
    from girih import _native

    if _enabled.settings.trace:
        for device in used_devices():
            path = _paths.own(_enabled.settings.trace, device)
            try:
                _native.save_trace(device, path)
            except RuntimeError as error:
                print(f"girih: the trace is not saved: {error}", file=sys.stderr)  # noqa: T201
    show_warnings()
    _native.finish()


def show_warnings() -> None:
    """Passes on what the heaps want a user to know."""
    from girih import _native

    for text in _native.take_warnings():
        warnings.warn(text, GirihWarning, stacklevel=3)


_NO_WATCH = Watch(lambda _kind, _name: None)
