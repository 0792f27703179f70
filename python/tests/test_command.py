"""`python -m girih COMMAND`: the program `girih`, which the wheel has laid into the environment."""

import os
import subprocess
import sys

import pytest

from girih import _command
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
