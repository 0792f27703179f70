"""Measurements run on the cards that they are given, and on no others."""

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "gpu"

# As the scripts find it.
sys.path.insert(0, str(GPU))
modes = importlib.import_module("modes")
sys.path.remove(str(GPU))


def test_cards_are_those_that_the_process_may_see(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    parser = argparse.ArgumentParser()
    assert modes.card_names(parser, 2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5718f39e,1")
    assert modes.card_names(parser, 2) == ["3", "GPU-5718f39e"]


@pytest.mark.parametrize("script", ["swap", "kinds", "readme"])
def test_too_few_cards_are_an_error_before_anything_runs(script, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--cards", "2"])
    monkeypatch.syspath_prepend(str(GPU))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(script).main()
    assert ended.value.code == 2
    assert "--cards 2, but CUDA_VISIBLE_DEVICES is 1" in capsys.readouterr().err


LAUNCHER = """
import signal, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
)
signal.signal(signal.SIGTERM, lambda *_: (child.kill(), child.wait(), sys.exit(1)))
print("STEP 1.5", child.pid, flush=True)
time.sleep(600)
"""


def test_ranks_of_a_launcher_that_takes_too_long_do_not_outlive_it():
    """They are in sessions of their own, as those of `torchrun`."""
    with pytest.raises(subprocess.TimeoutExpired) as stopped:
        modes.waited([sys.executable, "-c", LAUNCHER], 3)
    word, seconds, child = stopped.value.stdout.split()
    assert (word, seconds) == ("STEP", "1.5")
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_a_program_that_does_not_end_is_killed_and_what_it_said_is_known(monkeypatch):
    monkeypatch.setattr(modes, "TO_END_S", 1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf += "; print('STEP 2.5\\nSTEP 2.', end='', flush=True); time.sleep(600)"
    assert modes.ran(["-c", deaf], 3, "RESULT") == "ran past 3 s, after 1 steps, the last of 2.5 s"


def test_an_error_is_given_with_what_is_said_behind_it():
    said = "OutOfMemoryError: CUDA out of memory.\n12 GiB elsewhere"
    fails = f"import sys; sys.exit({said!r})"
    error = modes.ran(["-c", fails], 30, "RESULT")
    assert error == said
    assert modes.in_a_line(error) == "OutOfMemoryError: CUDA out of memory."
