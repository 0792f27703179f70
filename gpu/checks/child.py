"""Processes that a check starts with a program in their command line, and the release of torch."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from checks.registry import CHILD_SECONDS_MAX, equal


def release() -> tuple[int, ...]:
    """The release of torch, like (2, 11)."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, with more in its environment than this process has."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )


def printed(code: str, **environment: str) -> str:
    """What a program prints, which must end well."""
    found = child(code, **environment)
    equal(found.returncode, 0, f"the exit status ({found.stderr.strip()[-300:]})")
    return found.stdout.strip()
