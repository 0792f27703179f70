"""`gpu/record_rank.py`: what it says of two recordings, without a GPU."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "gpu/record_rank.py"


@pytest.fixture(scope="module")
def script():
    # As `python gpu/record_rank.py` finds its own.
    sys.path.insert(0, str(SCRIPT.parent))
    module = importlib.import_module("record_rank")
    sys.path.remove(str(SCRIPT.parent))
    return module


def test_what_is_in_one_alone_leaves_the_others_their_like(script):
    job = list(range(100))
    alone = [*job[:40], 777, 778, *job[40:70], *job[73:]]
    pairs = script.paired(job, alone)
    assert len(pairs) == 97
    assert all(job[a] == alone[b] for a, b in pairs)
    assert pairs[39:41] == [(39, 39), (40, 42)]


def test_recordings_with_nothing_in_common_have_no_pair(script):
    assert script.paired([1, 2, 3], [4, 5, 6]) == []


def test_the_first_difference_is_said_with_what_comes_there(script):
    request = script.Request
    job = [request(size, 1) for size in (5, 6, 7, 8)]
    alone = [request(size, life) for size, life in ((5, 1), (6, 2))]
    found = script.compared(job, alone)
    assert found["first_difference"] == 2
    assert (found["in_job_there"], found["alone_there"]) == ([7, 8], [])
    assert (found["same_size_in_order"], found["same_life"]) == (2, 1)


def test_a_recording_is_equal_to_itself(tmp_path):
    run = ROOT / "corpus/mlp_stacks.pickle.gz"
    output = tmp_path / "found.json"
    words = [sys.executable, SCRIPT, "-o", output, "--compare", run, run]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(output.read_text())
    assert {"commit", "date", "machine", "world", "program"} <= found.keys()
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["first_difference"]) == (0, None)
    assert rank["requests_in_job"] == rank["same_life"] == 354


def test_ranks_are_recorded_once_in_their_job_and_each_alone_on_a_card(
    script, monkeypatch, tmp_path
):
    launched = []

    def run(words, environment=None):
        launched.append((words, environment))
        if "--standalone" in words:
            for rank in range(4):
                (tmp_path / f"job.rank{rank}.cuda{rank}.girih").write_text("")

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    found = script.record(4, [0, 3], ["job.py", "--batch", "8"], tmp_path)
    assert {rank: (job.name, alone.name) for rank, (job, alone) in found.items()} == {
        0: ("job.rank0.cuda0.girih", "alone.rank0.girih"),
        3: ("job.rank3.cuda3.girih", "alone.rank3.girih"),
    }
    (job, _), *alone = launched
    assert "--nproc-per-node=4" in job
    assert sorted(words[words.index("--rank") + 1] for words, _ in alone) == ["0", "3"]
    used = {environment["CUDA_VISIBLE_DEVICES"] for _, environment in alone}
    assert len(used) == 2
    assert used <= {"4", "5", "6", "7"}
    assert {tuple(words[-3:]) for words, _ in launched} == {("job.py", "--batch", "8")}


def test_a_rank_that_the_job_has_not_is_refused():
    words = [sys.executable, SCRIPT, "--world", "4", "--rank", "0,4", "job.py"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "a job of 4 ranks has no rank 4" in result.stderr
