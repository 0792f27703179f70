"""`python -m girih top`: a process is seen while it lives, by its user, and costs nothing."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from conftest import start_on_terminal
from test_native import LOOP

from girih import _live, _top
from girih._errors import GirihError
from girih._stats import Stats

# Enabled as the package does it, on a simulated device and without torch.
RUN = (
    LOOP
    + """
from girih import _process, _settings
settings = _settings.Settings("expandable")
_process._enabled = _process.Enabled(
    settings, "shim", False, _process._NO_WATCH, os.getpid(), settings
)
_process._enabled.live = _process._listen()
sys.argv = ["train.py", "--lr", "3e-4"]
print("ready", flush=True)
"""
)
MIB = 1 << 20


@pytest.fixture
def where(tmp_path, monkeypatch):
    # A socket's name is short: pytest's own folders may be too long.
    folder = tmp_path / "l"
    monkeypatch.setenv("GIRIH_LIVE", str(folder))
    return folder


@contextlib.contextmanager
def running(tail="sys.stdin.readline()\n_process._enabled.live.stop()\n"):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN + tail],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def shown(python, *words):
    result = python("-m", "girih", "top", *words)
    return result.returncode, result.stdout, result.stderr


def test_a_process_is_seen_with_what_it_holds(python, where):
    with running() as process:
        status, out, _ = shown(python, "--json")
        (found,) = json.loads(out)["processes"]
        assert status == 0
        assert (found["pid"], found["state"]) == (process.pid, "runs")
        assert found["program"] == ["train.py", "--lr", "3e-4"]
        (device,) = found["heaps"]["devices"]
        assert device["allocated"] == 32 * MIB
        assert device["reserved"] >= device["allocated_peak"] == 168 * MIB
        status, out, _ = shown(python)
        lines = out.splitlines()
        assert status == 0
        assert re.split("  +", lines[0].strip()) == list(_top._HEAD)
        assert lines[2].split()[:6] == [str(process.pid), "-", "0", "expandable", "32.0", "MiB"]
        assert lines[-1] == f"{process.pid}: train.py --lr 3e-4"
        assert max(map(len, lines)) <= 80


def test_a_process_that_ends_takes_its_socket_away_and_one_that_is_killed_loses_it(python, where):
    with running() as process:
        assert len(_live.sockets(where)) == 1
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == 0
        assert not _live.sockets(where)
    with running() as process:
        process.kill()
        process.wait()
        assert len(_live.sockets(where)) == 1
        status, out, _ = shown(python)
        assert (status, out.split(".")[0]) == (1, "No process of yours runs on Girih here")
        assert not _live.sockets(where)


def test_a_process_that_is_stopped_is_said_to_be_silent(python, where):
    with running() as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            status, out, _ = shown(python)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert status == 0
        assert "does not answer" in out
        assert shown(python)[1].endswith(f"{process.pid}: train.py --lr 3e-4\n")


def test_only_its_user_can_read_it(where, monkeypatch):
    server = _live.Server(where, lambda: "{}")
    try:
        assert stat.S_IMODE(where.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
        assert _live.ask(server.path) == {}
        # By the kernel's word, even if the folder would let another one through.
        monkeypatch.setattr(_live, "_uid_of", lambda _: os.getuid() + 1)
        with contextlib.suppress(ConnectionResetError):
            assert _live.ask(server.path) is None
        assert server.path.exists()
    finally:
        server.stop()
    assert not list(where.iterdir())


def test_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(_live.os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="no folder of this user"):
        _live.Server(folder, lambda: "{}")
    with pytest.raises(GirihError, match="another user's"):
        _live.sockets(folder)
    monkeypatch.undo()
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(PermissionError, match="no folder of this user"):
        _live.Server(link, lambda: "{}")


def test_an_open_folder_of_ones_own_is_closed(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    _live.Server(folder, lambda: "{}").stop()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_whoever_connects_and_says_nothing_or_much_keeps_nobody_waiting(where):
    server = _live.Server(where, lambda: '{"a": 1}')
    try:
        idle = []
        for _ in range(3):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(server.path))
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(b"x" * 100_000)
            idle.append(connection)
        assert _live.ask(server.path, 10) == {"a": 1}
    finally:
        server.stop()
        for connection in idle:
            connection.close()


def test_a_forked_child_is_not_mistaken_for_its_parent(where):
    fork = """
pid = os.fork()
if pid == 0:
    _process._enabled.live.stop()   # what the end of a child does
    sys.stdin.readline()
    os._exit(0)
print(pid, flush=True)
os.kill(os.getpid(), 9)
"""
    with running(fork) as process:
        child = int(process.stdout.readline())
        process.wait(timeout=30)
        os.kill(child, 0)  # it lives
        (path,) = _live.sockets(where)
        # Were the parent's socket open in the child, this would wait for an answer.
        assert _live.ask(path) is None
        os.kill(child, signal.SIGKILL)


def test_the_parent_is_seen_after_a_fork(where):
    fork = """
pid = os.fork()
if pid == 0:
    _process._enabled.live.stop()
    os._exit(0)
os.waitpid(pid, 0)
print("forked", flush=True)
sys.stdin.readline()
"""
    with running(fork) as process:
        assert process.stdout.readline() == "forked\n"
        (path,) = _live.sockets(where)
        assert _live.ask(path)["pid"] == process.pid


def test_a_child_that_ends_as_python_does_leaves_the_socket_to_its_parent(where):
    fork = """
import atexit
atexit.register(_process._finish)
_native.finish = lambda: None
pid = os.fork()
if pid == 0:
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
sys.stdin.readline()
"""
    with running(fork) as process:
        assert process.stdout.readline() == "0\n"
        (path,) = _live.sockets(where)
        assert _live.ask(path)["pid"] == process.pid
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == 0
        assert not _live.sockets(where), "the parent's own end takes it away"


def test_workers_that_are_forked_are_not_shown_and_take_nothing_with_them(where):
    fork = """
import multiprocessing, time
def work(ready):
    ready.release()
    time.sleep(60)
context = multiprocessing.get_context("fork")
ready = context.Semaphore(0)
workers = [context.Process(target=work, args=(ready,)) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    ready.acquire()
print("forked", flush=True)
sys.stdin.readline()
workers[0].kill()
workers[1].terminate()
for worker in workers:
    worker.join()
print("joined", flush=True)
sys.stdin.readline()
"""
    with running(fork) as process:
        for word in ("forked", "joined"):
            assert process.stdout.readline() == f"{word}\n"
            (path,) = _live.sockets(where)
            assert _live.ask(path)["pid"] == process.pid
            process.stdin.write("\n")
            process.stdin.flush()


def test_a_child_that_is_forked_during_an_answer_keeps_nobody_waiting(where, python):
    code = """
import os, signal, sys, threading, time
from pathlib import Path
from girih import _live
asked, forked = threading.Event(), threading.Event()
def answer():
    asked.set()
    forked.wait()
    return '{"a": 1}'
server = _live.Server(Path(sys.argv[1]), answer)
found = []
asker = threading.Thread(target=lambda: found.append(_live.ask(server.path, 10)))
asker.start()
asked.wait()
child = os.fork()
if child == 0:
    signal.pause()
forked.set()
asker.join()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
server.stop()
print(found)
"""
    result = python("-c", code, str(where))
    assert result.stdout == "[{'a': 1}]\n", result.stderr


def test_nobody_is_kept_from_ending_and_no_time_is_taken_where_nobody_looks(where):
    before = time.process_time()
    server = _live.Server(where, lambda: "{}")
    thread = next(t for t in threading.enumerate() if t.name == "girih-live")
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    assert thread.daemon
    server.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_it_can_be_turned_off(python, where, monkeypatch):
    assert shown(python)[0] == 1
    monkeypatch.setenv("GIRIH_LIVE", "")
    status, _, err = shown(python)
    assert status == 2
    assert "GIRIH_LIVE" in err
    assert _live.folder() is None


@pytest.mark.parametrize("words", [["--interval", "0"], ["--interval", "x"], ["--no-such"]])
def test_options_are_checked(python, where, words):
    assert shown(python, *words)[0] == 2


def test_on_a_terminal_it_goes_on_and_says_that_a_process_has_ended(where):
    with running() as process:
        top = (sys.executable, "-m", "girih", "top", "--interval", "0.1")
        pid, terminal = start_on_terminal(*top)
        seen = until(terminal, r"(?s)expandable.*\x1b\[\d+A\r.*expandable")
        assert "has ended" not in seen
        process.stdin.write("\n")
        process.stdin.flush()
        until(terminal, r"(?s)\(has ended\).*All have ended")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_interrupt_leaves_with_130_and_no_traceback(where):
    with running():
        pid, terminal = start_on_terminal(sys.executable, "-m", "girih", "top")
        until(terminal, "expandable")
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
        assert "Traceback" not in until(terminal, "$")


def until(terminal, pattern):
    """What is written there, up to where it matches."""
    text, end = "", time.monotonic() + 60
    while not re.search(pattern, text) or pattern == "$":
        if not select.select([terminal], [], [], max(end - time.monotonic(), 0))[0]:
            raise AssertionError(f"no {pattern!r} in {text!r}")
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            data = b""  # its last process has gone
        if not data:
            if pattern == "$":
                return text
            raise AssertionError(f"no {pattern!r} in {text!r}")
        text += data.decode()
    return text


def test_the_table_fits_80_columns_whatever_is_in_it():
    device = {
        "device": 15,
        "mode": "expandable",
        "allocated": 1023 * MIB,
        "reserved": 1023 * MIB,
        "plan": {"peak": 1023 * MIB},
        "misses": 9_999_999,
        "stitches": 123_456_789_012,
    }
    said = {
        "pid": 4194304,
        "rank": 1023,
        "steps": 10**6,
        "program": ["x" * 200],
        "heaps": {"mode": "expandable", "devices": [device]},
    }
    for state in ("runs", "ended", "silent"):
        lines = _top.table({"a": _top.Seen(said, state)})
        assert max(map(len, lines)) <= 80, lines


def test_processes_that_hold_nothing_are_a_line_unless_there_are_no_others():
    worker = {"pid": 7, "program": ["-c"], "heaps": {"mode": "auto", "devices": []}}
    rank = {"pid": 6, "program": ["t.py"], "heaps": {"mode": "auto", "devices": [DEVICE]}}
    both = _top.table({"a": _top.Seen(rank), "b": _top.Seen(worker)})
    assert both[-2:] == ["6: t.py", "1 more that hold nothing: 7"]
    assert len(both) == 6
    alone = _top.table({"b": _top.Seen(worker)})
    assert alone[2].split() == ["7", "-", "-", "auto", "-", "-", "-", "-", "-"]


DEVICE = {
    "device": 0,
    "mode": "auto",
    "stage": "following",
    "allocated": 10 << 30,
    "allocated_peak": 12 << 30,
    "reserved": 13 << 30,
    "reserved_peak": 13 << 30,
    "device_free": 60 << 30,
    "device_total": 80 << 30,
    "hits": 999_999,
    "misses": 1,
    "ooms": 0,
    "stitches": 7,
    "calls": {"map": 1234},
    "driver_seconds": 0.5,
    "plan": {"peak": 12 << 30, "gap": 0.0012},
}


def test_statistics_draw_themselves():
    stats = Stats({"mode": "auto", "devices": [DEVICE]})
    assert stats["devices"][0]["allocated"] == 10 << 30
    assert json.loads(json.dumps(stats)) == {"mode": "auto", "devices": [DEVICE]}
    text = str(stats)
    assert text == repr(stats)
    assert "reserved      13.0 GiB, 13.0 GiB at most" in text
    assert "99.99 % of 1,000,000 requests" in text
    assert "12.0 GiB, 0.12 % over the bound (following)" in text
    assert max(map(len, text.splitlines())) <= 80
    page = stats._repr_html_()
    widths = [float(width) for width in re.findall(r'"width:([\d.]+)%', page)]
    assert widths == [12.5, 3.75, 8.75, 75.0]
    assert str(Stats(DEVICE)) == text


def test_statistics_that_are_off_say_why_and_are_no_markup():
    stats = Stats({"mode": "off", "off": "<no driver>", "devices": []})
    assert str(stats) == "Girih is off: <no driver>"
    assert stats._repr_html_() == "<pre>Girih is off: &lt;no driver&gt;</pre>"
