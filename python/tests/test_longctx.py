"""The tables of `gpu/longctx.py` can be tried without a GPU, and end in time."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "gpu"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
    reason="torch or transformers is not installed",
)


def table(tmp_path, *words):
    """What one run of the script kept, and what it printed."""
    output = tmp_path / "found.json"
    command = [sys.executable, str(GPU / "longctx.py"), *words, "--device", "cpu", "--tiny"]
    done = subprocess.run(
        [*command, "--layers", "1", "-o", str(output)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(output.read_text()), done.stdout


def test_ways_train_the_same(tmp_path):
    only = [word for way in ("plain", "recompute", "both:products") for word in ("--only", way)]
    runs, printed = table(tmp_path, "mfu", "--length", "96", "--steps", "3", "--exact", *only)
    assert [run["way"] for run in runs] == ["plain", "recompute", "both:products"]
    first = runs[0]["seen"]
    for run in runs[1:]:
        assert run["seen"]["digests"] == first["digests"]
        assert run["seen"]["exact_losses"] == first["exact_losses"]
    assert printed.count("the same") == 2


def test_what_there_is_no_time_for_is_left_out_and_said(tmp_path):
    runs, printed = table(tmp_path, "sweep", "--minutes", "0.01", "--alpha", "0")
    assert runs
    assert all(run["left_out"] for run in runs)
    assert printed.count("LEFT OUT") == len(runs)


@pytest.mark.parametrize("steps", [2, 3, 5, 14])
def test_workloads_are_told_each_option_with_its_value(steps, monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    longctx = importlib.import_module("longctx")
    options = longctx.parse(["parallel", "--layers", "1", "--steps", str(steps)])
    words = longctx.shared_shape(options, 256)
    assert [word.startswith("--") for word in words] == [True, False] * (len(words) // 2)
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert told["--layers"] == "1"
    assert 1 <= int(told["--settled"]) < steps
    assert longctx.shape(options, 256) == ["--batch", "1", *words]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict --only swap", "--only of predict is one of plain, recompute: not swap"),
        ("parallel --only rings", "is one of ulysses, ring, context, context-ring: not rings"),
        ("predict --recorded-layers 1", "--recorded-layers 2 or more"),
        ("mfu --steps 1", "--steps 2 or more"),
        ("mfu --layers 0", "--layers 1 or more"),
        ("predict --recorded-tokens 5", "is of --recording"),
    ],
)
def test_what_would_give_no_row_is_refused(words, said, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(GPU))
    with pytest.raises(SystemExit):
        importlib.import_module("longctx").parse(words.split())
    assert said in capsys.readouterr().err


def test_sequences_are_shared_by_the_ways_of_pytorch(tmp_path):
    pytest.importorskip(
        "torch.distributed.tensor.experimental._context_parallel",
        reason="this torch has another context_parallel, or none",
        exc_type=ImportError,
    )
    ways = ("", "0", "recompute")
    kinds = ["--only", "context", "--only", "context-ring"]
    kinds += [word for way in ways for word in ("--alpha", way)]
    shape = ("--length", "192", "--steps", "2", "--exact")
    runs, printed = table(tmp_path, "parallel", *shape, *kinds)
    assert [run["way"] for run in runs] == [
        f"{kind}{colon}{way}"
        for kind in ("context", "context-ring")
        for colon, way in (("", ""), (":", "0"), (":", "recompute"))
    ]
    # Whatever is kept, the gradients are the same to the bit.
    for whole, *others in (runs[:3], runs[3:]):
        for other in others:
            assert whole["seen"]["sums"] == other["seen"]["sums"]
            assert whole["seen"]["exact_losses"] == other["seen"]["exact_losses"]
    assert printed.count("same") == len(runs)


def test_what_is_foretold_is_held_against_a_run(tmp_path):
    runs, printed = table(tmp_path, "predict", "--length", "96", "--steps", "2", "--only", "plain")
    assert [run["way"] for run in runs] == ["plain", "plain"]
    assert runs[1]["foretold"]["step_us"] > 0
    assert printed.count("are foretold") == 1


def test_tiles_are_a_way_and_the_longest_is_found(tmp_path):
    words = ("--length", "128", "--most", "256", "--unit", "128")
    runs, printed = table(tmp_path, "longest", *words, "--steps", "1", "--only", "tiles:0")
    assert [run["tokens"] for run in runs] == [128, 256]
    assert "tiles:0: 256 tokens" in printed


def test_one_step_is_enough_to_see_what_fits_with_what_a_program_computes_again(tmp_path):
    words = ("--length", "128", "--most", "128", "--unit", "128", "--only", "girih:recompute")
    runs, printed = table(tmp_path, "longest", *words, "--steps", "1")
    [run] = runs
    assert run["seen"]["name"] == "recompute"
    assert len(run["seen"]["losses"]) == 1
    assert "girih:recompute: 128 tokens, none did not fit" in printed


def test_a_launch_that_had_too_little_time_is_not_said_to_have_not_fitted(tmp_path):
    """Its steps until then are in its error."""
    output = tmp_path / "found.json"
    words = ("longest", "--length", "128", "--most", "256", "--unit", "128", "--only", "plain")
    command = [sys.executable, str(GPU / "longctx.py"), *words, "--device", "cpu", "--tiny"]
    command += ["--layers", "1", "--steps", "100000", "--timeout", "30", "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    [run] = json.loads(output.read_text())
    seconds = run["error"].removeprefix("ran past 30 s, after ").removesuffix(" s")
    count, last = seconds.split(" steps, the last of ")
    assert int(count) > 10
    assert all(float(step) < 30 for step in last.split(", ")), last
    assert "plain: 128 tokens have not shown whether they fit" in done.stdout
    assert "plain: 0 tokens, none did not fit" in done.stdout
    assert done.returncode == 1
