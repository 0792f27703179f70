"""`python -m girih COMMAND`: the program `girih`, which the wheel has laid into the environment."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import start_on_terminal

from girih import __main__, _command
from girih._errors import GirihError


def test_the_module_and_the_program_are_one(python):
    path = _command.find()
    for words in (["--help"], ["stats", "nowhere.pickle"], ["no-such-command"]):
        program = subprocess.run([path, *words], capture_output=True, text=True, check=False)
        if words == ["--help"]:
            # The module's own, which names both.
            assert "run" in python("-m", "girih", *words).stdout
            assert "compare" in program.stdout
            continue
        module = python("-m", "girih", *words)
        assert (module.returncode, module.stdout) == (program.returncode, program.stdout)
        assert module.returncode == 2
        assert module.stderr == program.stderr != ""


def test_its_interrupts_and_pipes_are_the_programs_own(python):
    """The process becomes the program: nothing of Python is left to print a traceback."""
    code = (
        "import os, subprocess, sys\n"
        "process = subprocess.Popen([sys.executable, '-m', 'girih', 'man'], stdout=-1)\n"
        "process.stdout.close(); print(process.wait())\n"
    )
    result = python("-c", code)
    assert (result.stdout, result.stderr) == ("0\n", "")


def test_without_the_program_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(_command, "_installed", list)
    monkeypatch.setattr(_command.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(GirihError, match="pip install"):
        _command.find()
    (tmp_path / "girih").write_text("#!/bin/sh\n")
    with pytest.raises(GirihError):
        _command.find()  # it is no program
    (tmp_path / "girih").chmod(0o755)
    assert _command.find() == tmp_path / "girih"


def test_the_module_says_so_where_the_program_is_missing(tmp_path):
    code = (
        "import sys\n"
        "from girih import __main__, _command\n"
        "def find(): raise _command.GirihError('not here')\n"
        "_command.find = find\n"
        "sys.exit(__main__.main(['compare', 'x']))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert result.returncode == 2
    assert result.stderr == 'girih: "compare" is a command of the program girih: not here\n'


# ---- on a terminal ----

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
RECORDING = CORPUS / "megatron_gpt2-R_r3.pickle.gz"
needs_corpus = pytest.mark.skipif(not RECORDING.is_file(), reason=f"there is no {RECORDING}")


def on_terminal(words, *, until=None, then=b""):
    """Runs the program with a terminal of its own: its exit status, and all that it wrote there.

    As soon as `until` matches, `then` is typed.
    """
    pid, terminal = start_on_terminal(_command.find(), *words)
    text = b""
    while True:
        if not select.select([terminal], [], [], 120)[0]:
            os.kill(pid, signal.SIGKILL)
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # nobody writes there any more
            break
        if not data:
            break
        text += data
        if until is not None and re.search(until, text):
            os.write(terminal, then)
            until = None
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return status, text.decode()


def screen(text):
    """The lines that a terminal shows after all of a text, without those that are empty."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\x1b.|.|\n", text, re.DOTALL):
        if piece == "\n":
            row += 1
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b["):
            kind, count = piece[-1], int(re.sub(r"\D", "", piece) or 0)
            if kind == "A":
                row = max(row - max(count, 1), 0)
            elif kind == "B":
                row += max(count, 1)
            elif kind == "G":
                column = max(count, 1) - 1
            elif kind == "K":
                lines[row] = "" if count == 2 else lines[row][:column]
            elif kind == "J":
                lines[row:] = [lines[row][:column]]
        elif piece[0] != "\x1b":
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + 1 :]
            column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines if line.strip()]


def test_the_screen_of_these_tests_is_one():
    assert screen("one\rtwo\x1b[2K\r\nthree\r\nfour\x1b[1A\r\x1b[Kx\n") == ["x", "four"]
    assert screen("spin\r\x1b[2Kdone\r\n") == ["done"]


@needs_corpus
def test_what_moves_shows_percentages_and_leaves_nothing_behind():
    words = ["compare", str(RECORDING)]
    status, text = on_terminal(words)
    assert status == 0
    assert re.search(r"\d\d % .*: stitch", text), text
    plain = subprocess.run([_command.find(), *words], capture_output=True, text=True, check=True)
    # What a pipe gets is what stays on the terminal.
    shown = [line for line in plain.stdout.splitlines() if line.strip()]
    assert screen(text) == shown
    assert plain.stderr == ""


@needs_corpus
def test_an_interrupt_leaves_a_word_on_a_clean_line_and_130():
    status, text = on_terminal(["compare", str(RECORDING)], until=b"planning|launch", then=b"\x03")
    assert status == 130
    assert screen(text)[-1].endswith("girih: cut short by Ctrl-C"), screen(text)
    assert len(screen(text)) <= 2
    assert not any("planning" in line for line in screen(text))


def test_an_interrupted_doctor_says_so(python, monkeypatch, capsys):
    def interrupted(_words):
        raise KeyboardInterrupt

    monkeypatch.setattr("girih._doctor.main", interrupted)
    assert __main__.main(["doctor"]) == 130
    assert capsys.readouterr().err == "girih: cut short by Ctrl-C\n"
    monkeypatch.setattr("girih._run.main", interrupted)
    with pytest.raises(KeyboardInterrupt):
        __main__.main(["run", "x.py"])


def test_verbose_says_what_is_done_and_quiet_not_both(python):
    code = "import girih; girih.enable('off')"
    assert python("-m", "girih", "run", "--mode", "off", "-c", code).stderr == ""
    result = python("-m", "girih", "run", "-v", "--mode", "off", "-c", code)
    assert "girih: the launcher's settings hold" in result.stderr
    assert python("-m", "girih", "run", "-q", "-v", "-c", code).returncode == 2
