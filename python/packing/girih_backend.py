"""The build backend of the package: maturin's, and the command `girih` put into the wheel.

maturin builds one thing, the extension. The command is a program of its own, which pip is to lay
into the environment's `bin`: it is built here and added to the wheel that maturin has made.
`scripts/wheel` adds the prebuilt shims in the same way.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[2]
PROFILE = "dist"


def build_wheel(
    directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """The wheel with the extension and the command. Gives its name in `directory`."""
    name: str = maturin.build_wheel(directory, config_settings, metadata_directory)
    wheel = Path(directory) / name
    add(wheel, {script_name(wheel): build_command()})
    return name


def build_command(cargo: tuple[str, ...] = ("cargo", "build"), target: str | None = None) -> Path:
    """Builds the command as it is shipped, and gives its file."""
    words = [*cargo, "--profile", PROFILE, "--package", "girih-cli", "--bin", "girih", "--locked"]
    if target is not None:
        words += ["--target", target]
    words += ["--message-format", "json-render-diagnostics"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    messages = map(json.loads, done.stdout.splitlines())
    made = [message["executable"] for message in messages if message.get("executable")]
    return Path(made[-1])


def script_name(wheel: Path) -> str:
    """Where a wheel has what goes into `bin`."""
    distribution, version = wheel.name.split("-")[:2]
    return f"{distribution}-{version}.data/scripts/girih"


def add(wheel: Path, files: Mapping[str, Path]) -> None:
    """Puts files into a wheel, under their names in it, and into its list of what it holds."""
    partial = wheel.with_name(f"{wheel.name}.{os.getpid()}")
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new,
    ):
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        lines = [
            line
            for line in old.read(record).decode().splitlines()
            if line.partition(",")[0] not in {*files, record}
        ]
        for entry in old.infolist():
            if entry.filename not in {*files, record}:
                new.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED, 9)
        for name, path in files.items():
            data = path.read_bytes()
            # A date that says nothing, so that the same files make the same wheel.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            # pip makes a program executable only if it is told that it is a plain file.
            entry.external_attr = (stat.S_IFREG | mode) << 16
            new.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            lines.append(f"{name},sha256={digest.decode()},{len(data)}")
        new.writestr(record, "\n".join([*lines, f"{record},,", ""]))
    partial.replace(wheel)
