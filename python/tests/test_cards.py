"""Measurements run on the cards that they are given, and on no others."""

import argparse
import importlib
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
