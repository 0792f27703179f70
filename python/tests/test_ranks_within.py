"""What `gpu/ranks.py` launches and says, without a GPU."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "gpu"


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("ranks")


def run(ranks, monkeypatch, words, fits):
    """Runs it over launches that fit up to a batch, by way. The command lines."""
    commands = []

    def launched(command, *_options):
        commands.append(command)
        batch = int(command[command.index("--batch") + 1])
        way = "girih" if "girih" in command else "offload" if "--offload" in command else "other"
        if batch > fits[way]:
            error = "torch.OutOfMemoryError: CUDA out of memory."
            return subprocess.CompletedProcess(command, 1, "", f"rank 0\n{error}\n")
        seen = {"allocated_peak": 1 << 30, "reserved_peak": 2 << 30, "median_step_s": 0.5}
        if way == "girih":
            seen |= {"settled_steps": 2, "settled_changes": {"swap.bytes_out": 4_000_000_000}}
        return subprocess.CompletedProcess(command, 0, f"RESULT {json.dumps(seen)}\n", "")

    monkeypatch.setattr(ranks, "waited", launched)
    monkeypatch.setattr(sys, "argv", ["ranks.py", *words])
    return ranks.main(), commands


def test_batches_grow_until_one_does_not_fit(ranks, monkeypatch, capsys, tmp_path):
    out = tmp_path / "ranks.json"
    words = ["--only", "recompute,offload,girih", "--batches", "4,8,16", "-o", str(out)]
    fits = {"other": 4, "offload": 8, "girih": 16}
    status, commands = run(ranks, monkeypatch, words, fits)
    said = capsys.readouterr().out.splitlines()
    assert status == 0, "out of memory is no failure"
    assert len(commands) == 2 + 3 + 3
    assert said[-3:] == [
        "recompute          largest batch 4, at most 32768 tokens/s, with 4",
        "offload            largest batch 8, at most 65536 tokens/s, with 8",
        "girih              largest batch 16, at most 131072 tokens/s, with 16",
    ]
    assert said[-4].split() == ["girih", "16", "1024", "2048", "0.500", "131072", "2.00"]
    assert len(json.loads(out.read_text())["runs"]) == len(commands)
    # Everybody has the same bytes: of PyTorch's allocator as a cap, of Girih's as a budget.
    for command in commands:
        is_ours = "girih" in command
        assert ("--cap" in command) != is_ours
        assert ("--gpu-budget" in command) == is_ours
        assert "24GiB" in command or command[command.index("--cap") + 1] == "24"


def test_another_error_is_a_failure(ranks, monkeypatch, capsys):
    def failed(command, *_options):
        return subprocess.CompletedProcess(command, 1, "", "RuntimeError: NCCL is not there\n")

    monkeypatch.setattr(ranks, "waited", failed)
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--only", "plain"])
    assert ranks.main() == 1
    said = capsys.readouterr().out
    assert "FAILED RuntimeError: NCCL is not there" in said
    assert "plain              runs with none of the batches" in said
