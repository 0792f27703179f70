"""What `python -m girih top` asks: a socket of each process that runs on Girih.

    /tmp/girih-1000/            of this user alone (0700)
        4711-9f2c.sock          who connects is sent one JSON object, and hung up on

A thread sleeps in `accept`: where nobody looks it costs nothing. It reads nothing from whoever
connects, so there is nothing to send it. Only processes of the same user, or root's, get an answer,
whatever the folder lets through. An answer holds a heap's lock for as long as `girih.stats()` does,
and Python's for a fraction of a millisecond; answers are given one after the other, with a pause.

A forked child has the parent's socket and not its thread: it closes it, leaves its name to the
parent, and is not shown itself, whatever it holds. One that is spawned enables Girih itself and is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from girih._errors import GirihError

log = logging.getLogger("girih")

_SUFFIX = ".sock"
# Whoever does not take an answer within this time goes without.
_SEND_SECONDS_MAX = 2.0
_PAUSE_SECONDS = 0.02
_ANSWER_BYTES_MAX = 1 << 20


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the sockets are: $GIRIH_LIVE, else in /tmp; None if $GIRIH_LIVE is empty.

    Not by TMPDIR or XDG_RUNTIME_DIR, which a job may have and the shell that looks at it has not.
    """
    named = environ.get("GIRIH_LIVE")
    if named is not None:
        return Path(named).absolute() if named else None
    return Path(f"/tmp/girih-{os.getuid()}")


def _own(path: Path) -> Path:
    """The folder, which is made if it is not there.

    Raises:
        OSError: if it is not this user's alone: another could listen, or put sockets there.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} is no folder of this user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


class Server:
    """The socket of this process."""

    def __init__(self, where: Path, answer: Callable[[], str]) -> None:
        """Listens in this folder, and answers with what `answer` gives.

        Raises:
            OSError: if that cannot be done.
        """
        self._answer = answer
        self._pid = os.getpid()
        self.path = _own(where) / f"{self._pid}-{secrets.token_hex(4)}{_SUFFIX}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Before anything can fork: while a child had the socket, whoever connects after the end of
        # this process would wait for an answer.
        os.register_at_fork(after_in_child=self._socket.close)
        try:
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
            self._socket.listen(4)
            threading.Thread(target=self._serve, name="girih-live", daemon=True).start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Answers nobody any more, and takes the socket away. In a forked child it does nothing."""
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
        # It wakes the thread, as closing alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_SEND_SECONDS_MAX)
                if _uid_of(connection) in (os.getuid(), 0):
                    connection.sendall(self._text().encode())
                    # A child that was forked meanwhile has the connection too, and would keep the
                    # other end waiting for its end.
                    connection.shutdown(socket.SHUT_WR)
            time.sleep(_PAUSE_SECONDS)

    def _text(self) -> str:
        try:
            return self._answer()
        except Exception as error:
            log.debug("there is no answer for who looks", exc_info=True)
            return json.dumps({"error": f"{type(error).__name__}: {error}"})


def _uid_of(connection: socket.socket) -> int:
    """The user of the process at the other end, by the kernel's word."""
    layout = struct.Struct("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return int(layout.unpack(found)[1])


def sockets(where: Path) -> list[Path]:
    """The sockets of this user's processes, the oldest process first.

    Raises:
        GirihError: if the folder is not this user's.
    """
    try:
        found = where.lstat()
    except FileNotFoundError:
        return []
    if found.st_uid != os.getuid():
        raise GirihError(f"name a folder of your own in $GIRIH_LIVE: {where} is another user's")
    paths = [path for path in where.iterdir() if path.suffix == _SUFFIX]
    return sorted(paths, key=lambda path: int(path.name.partition("-")[0] or 0))


def ask(path: Path, seconds: float = 2.0) -> dict[str, Any] | None:
    """What the process behind a socket says; None if it has ended: then its socket goes.

    Raises:
        TimeoutError: if it lives, and does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except BlockingIOError as error:
            raise TimeoutError("others are waiting for it") from error
        data = b""
        try:
            while len(data) < _ANSWER_BYTES_MAX and (part := connection.recv(1 << 16)):
                data += part
        except ConnectionResetError:
            return None
    if not data:
        # It has ended between the two calls.
        return None
    try:
        found = json.loads(data)
    except ValueError as error:
        raise TimeoutError("its answer was cut off") from error
    return found if isinstance(found, dict) else None
