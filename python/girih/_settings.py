"""The settings of a process: from arguments, from the environment, and back to it.

A launcher settles them in the environment, for every process that it starts; a program settles them
by `girih.enable`. They are one object, so that both ways mean the same.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from girih import _paths, _ranks, _sizes
from girih._errors import GirihError
from girih._toolchain import release_of

MODES: dict[str, str] = {
    "auto": "caches, watches, plans when two iterations agree, and follows the plan",
    "plan": "follows a plan file from the first request",
    "stitch": "expandable segments whose free memory is stitched where a request fits no hole",
    "expandable": "PyTorch's expandable segments",
    "gmlake": "GMLake as published, a baseline to measure against",
    "native": "PyTorch's default algorithm",
    "profile": "no cache: each request straight to the device, for recording runs that hardly fit",
    "phantom": "records runs far beyond the card, computing garbage in shared memory",
    "off": "PyTorch's own allocator, untouched",
}
"""Every mode, and what it does."""

# Modes in which what is let go of can serve any request.
_SWAPPING = ("auto", "plan", "stitch")

# Options that Python obeys. All others are handed to the heaps, which know theirs.
_PYTHON_OPTIONS = {"modules", "hooks", "live", "long_context", "mlp_in_tiles"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How Girih works in this process."""

    mode: str = "auto"
    plan: str | None = None
    """Path of a plan file; `{device}` in it stands for the device's number. The mode `plan` takes
    the plan that a run in the mode `auto` has kept in `plan_dir`, if this is None."""
    plan_dir: str | None = None
    """Where plans are kept and looked for; None for nowhere."""
    conf: str | None = None
    """Settings of the caching modes, in the words of PYTORCH_CUDA_ALLOC_CONF; None for what was
    written there for PyTorch."""
    trace: str | None = None
    """Where the recording of this process goes at its end."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options, for hooks and heaps."""

    def __post_init__(self) -> None:
        """Refuses what cannot mean anything."""
        if self.mode not in MODES:
            known = ", ".join(MODES)
            raise GirihError(f'use a mode of Girih, "{self.mode}" is none: there are {known}')
        if self.mode == "plan" and not self.plan and not self.plan_dir:
            raise GirihError(
                'pass plan="file.plan" (--plan), or a plan_dir in which an earlier run has left '
                'its plan: the mode "plan" follows one'
            )
        if self.plan and "{device}" not in self.plan and not Path(self.plan).is_file():
            raise GirihError(
                f"make the plan first (`girih plan`), or name another: there is no file {self.plan}"
            )

    @property
    def records(self) -> bool:
        """True if requests are recorded even where the mode would not."""
        is_wanted = bool(self.options.get("record", False))
        return is_wanted or self.trace is not None or self.mode in ("profile", "phantom")

    @property
    def swaps_at_the_edge(self) -> bool:
        """True if saved tensors go to the host where a run would end in out of memory."""
        options = self.options
        is_off = options.get("swap") == "off" or not options.get("hooks", True)
        return self.mode in _SWAPPING and "gpu_budget" not in options and not is_off

    def option(self, name: str, default: Any) -> Any:
        """An option that Python obeys."""
        return self.options.get(name, default)

    def with_plan(self, key: str) -> Settings:
        """These settings with the plan that the mode `plan` is to follow."""
        if self.mode != "plan" or self.plan or not self.plan_dir:
            return self
        from girih import _native

        plan = _native.plan_file(self.plan_dir, key)
        if not any(Path(self.plan_dir).glob(Path(plan).name.replace("{device}", "*"))):
            raise GirihError(
                'run it once in the mode "auto", or name a plan file: no plan of this program, '
                f"with these arguments, is kept in {self.plan_dir}"
            )
        return dataclasses.replace(self, plan=plan)

    def for_heaps(self, *, key: str, torch: str, environ: Mapping[str, str] = os.environ) -> str:
        """The JSON object that configures the heaps.

        `key` names program and rank, `torch` is the release: small choices differ by it, and so
        does where PyTorch looks for its settings.
        """
        heaps = {name: value for name, value in self.options.items() if name not in _PYTHON_OPTIONS}
        if not self.option("hooks", True) and not {"gpu_budget", "host_budget"} & heaps.keys():
            # Nobody would tell of saved tensors.
            heaps["swap"] = "off"
        return json.dumps(
            heaps
            | {
                "mode": self.mode,
                "conf": self.conf,
                "torch_conf": torch_conf(release_of(torch), environ),
                "plan": self.plan,
                "plan_dir": self.plan_dir,
                "key": key,
                "plans_by_gpu": _ranks.rank() is None,
                "local_ranks": _ranks.on_this_machine(environ),
                "record": self.records,
                "torch": torch,
            }
        )


def make(
    mode: str = "auto",
    *,
    plan: str | os.PathLike[str] | None = None,
    plan_dir: str | os.PathLike[str] | bool | None = None,
    conf: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from what a user wrote."""
    if plan_dir is None or plan_dir is True:
        plan_dir = cache_dir(environ) / "plans"
    return Settings(
        mode=mode,
        plan=None if plan is None else _paths.absolute(plan, environ),
        plan_dir=None if plan_dir is False else str(Path(plan_dir).absolute()),
        conf=conf,
        trace=None if trace is None else str(Path(trace).absolute()),
        options=_with_sizes(options or {}),
    )


def _with_sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose sizes are bytes."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("gpu_budget", "host_budget"):
        if name in given:
            given[name] = _sizes.parse(name, given[name])
    return given


def torch_conf(release: tuple[int, int], environ: Mapping[str, str] = os.environ) -> str:
    """The allocator settings that were written for PyTorch, as this release of it finds them."""
    # The last name came with 2.10, and is looked at last. A variable that is set to nothing counts.
    later = ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if release >= (2, 10) else ()
    texts = (environ.get(name) for name in ("PYTORCH_CUDA_ALLOC_CONF", *later))
    return next((text for text in texts if text is not None), "")


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where compiled shims and plans are kept: $GIRIH_CACHE, else girih in the user's cache."""
    if named := environ.get("GIRIH_CACHE"):
        return Path(named)
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "girih"
    return Path(environ.get("HOME") or "~").expanduser() / ".cache" / "girih"


def from_environ(environ: Mapping[str, str] = os.environ) -> Settings | None:
    """The settings that a launcher left in the environment; None without GIRIH_MODE."""
    mode = environ.get("GIRIH_MODE")
    if not mode:
        return None
    options = environ.get("GIRIH_OPTIONS") or "{}"
    try:
        parsed = json.loads(options)
    except ValueError as error:
        raise GirihError(f"write GIRIH_OPTIONS as a JSON object: {error}") from error
    if not isinstance(parsed, dict):
        raise GirihError(f"write GIRIH_OPTIONS as a JSON object, it is {options}")
    plan_dir = environ.get("GIRIH_PLAN_DIR")
    return make(
        mode,
        plan=environ.get("GIRIH_PLAN") or None,
        plan_dir=False if plan_dir == "" else plan_dir,
        conf=environ.get("GIRIH_CONF"),
        trace=environ.get("GIRIH_TRACE") or None,
        options=parsed,
        environ=environ,
    )


def to_environ(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Leaves the settings to the processes that this one starts."""
    values = {
        "GIRIH_MODE": settings.mode,
        "GIRIH_PLAN": settings.plan,
        "GIRIH_PLAN_DIR": settings.plan_dir or "",
        "GIRIH_CONF": settings.conf,
        "GIRIH_TRACE": settings.trace,
        "GIRIH_OPTIONS": json.dumps(dict(settings.options)) if settings.options else None,
    }
    for name, value in values.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
