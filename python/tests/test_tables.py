"""`gpu/tables.py`: the tables of the papers, on a machine that is not there.

Workloads, recordings and the driver's calls are answered by a stand-in at the edge of the process
(`stand_in.py`). `girih compare`, `girih plan` and what becomes of it all are real.
"""

import contextlib
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from stand_in import CARD_MIB, Absent, StandIn

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "gpu"

# As `python gpu/tables.py` finds its own.
sys.path.insert(0, str(GPU))
tables = importlib.import_module("tables")
sys.path.remove(str(GPU))
ALL = [(one.seed, one.name) for one in tables.TABLES]


# ---- what docs say ----


def test_every_table_is_named_in_the_page_of_the_papers_and_no_other():
    text = (ROOT / "docs/seeds.md").read_text()
    named = set(re.findall(r"`gpu/tables\.py (\w+) (\w+)", text))
    assert named == set(ALL)


def test_no_row_needs_a_gpu_without_a_command():
    rows = [line for line in (ROOT / "docs/seeds.md").read_text().splitlines() if "|" in line]
    assert [row for row in rows if "needs a GPU" in row and "gpu/" not in row] == []


# ---- the command ----


def test_without_words_all_tables_are_listed_within_a_terminal():
    lines = tables.listed()
    assert len(lines) == len(tables.TABLES) + 1
    assert {tuple(line.split()[:2]) for line in lines[1:]} == set(ALL)
    assert [line for line in lines if len(line) > 80] == []


def test_what_a_quick_table_takes_is_at_most_five_minutes():
    assert [one.name for one in tables.TABLES if one.quick > 5 or one.quick > one.minutes] == []


def test_every_table_can_be_asked_for_and_has_a_file_of_its_own():
    files = {tables.parse([one.seed, one.name]).output for one in tables.TABLES}
    files |= {tables.parse([one.seed, one.name, "--quick"]).output for one in tables.TABLES}
    assert len(files) == 2 * len(tables.TABLES)


def test_options_may_stand_before_the_names_as_the_documents_have_them():
    words = ["together", "--quick", "--at-once", "4", "memo/fig1a", "chameleon/fig7"]
    options = tables.parse(words)
    assert [one.title for one in options.tables] == ["memo fig1a", "chameleon fig7"]
    assert options.quick
    words = ["record", "--keep", "kept", "--seconds", "5", "stweaver/fig2", "gmlake/fig11"]
    assert [one.title for one in tables.parse(words).tables] == ["stweaver fig2", "gmlake fig11"]
    assert tables.parse(["stweaver", "--quick", "fig8"]).table.name == "fig8"
    text = (GPU / "README.md").read_text()
    for line in re.findall(r"^python gpu/tables\.py (.*)$", text, re.MULTILINE):
        tables.parse(line.split())


def test_a_table_that_is_not_there_is_answered_with_those_that_are(capsys):
    with pytest.raises(SystemExit) as ended:
        tables.parse(["gmlake", "fig99"])
    assert ended.value.code == 2
    assert "of gmlake name one of table1, fig6" in capsys.readouterr().err


def test_what_a_machine_lacks_is_said_in_one_line_with_what_to_do():
    one = next(one for one in tables.TABLES if one.modules)
    assert one.missing(0).startswith("run on a machine with 1 NVIDIA GPU")
    absent = type(one)(**{**vars(one), "modules": ("no_such.module",)})
    assert absent.missing(1) == f"install no_such-module: {one.name} runs programs of it"
    lacking = type(one)(**{**vars(one), "modules": (), "tools": ("no-such-tool",)})
    assert lacking.missing(1) == f"install no-such-tool: {one.name} needs it"


def test_without_a_gpu_nothing_is_run(monkeypatch, capsys):
    monkeypatch.setattr(tables, "cards", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["tables.py", "gmlake", "table1"])
    assert tables.main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gmlake table1: run on a machine with 1 NVIDIA GPU")
    assert said.err.count("\n") == 1


def test_kept_results_become_tables(capsys):
    assert tables.kept([str(ROOT / "bench/results/gpu/hf-gpt2.json")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("### hf-gpt2\n")
    assert "| native | 0 | 48,511 | 57,194 | 0.8482 |" in said


# ---- the stand-in ----


@pytest.fixture(scope="module")
def parsers():
    """The parser of each workload that tables launch."""
    finder = Absent()
    before = dict(sys.modules)
    for name in [name for name in sys.modules if name.partition(".")[0] in Absent.NAMES]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(GPU / "workloads"))
    try:
        found = {}
        for name in ("hf", "fsdp", "megatron_gpt", "longer", "zero"):
            found[name] = importlib.import_module(name).__dict__
        yield found
    finally:
        sys.path.remove(str(GPU / "workloads"))
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


@functools.cache
def has_command():
    """Whether `python -m girih compare` is there: it needs the command in Rust."""
    words = [sys.executable, "-m", "girih", "compare", "--help"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def machine(parsers, monkeypatch):
    bench = sys.modules["seeds.bench"]
    stand_in = StandIn(parsers)

    def waited(command, timeout, environ=None):
        # Whatever stands for it when it is called.
        return subprocess.run(command, check=False, timeout=timeout, env=environ)

    @contextlib.contextmanager
    def smaller_card(gibibytes, gpus):
        stand_in.limit = gibibytes
        try:
            yield f"free on each card: {gibibytes:.2f} GiB"
        finally:
            stand_in.limit = None

    monkeypatch.setattr(subprocess, "run", stand_in)
    monkeypatch.setattr(sys.modules["modes"], "waited", waited)
    monkeypatch.setattr(tables, "cards", lambda: 1)
    monkeypatch.setattr(sys.modules["seeds.bench"], "cards", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(bench, "has_module", lambda name: True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sys.modules["seeds.gmlake"], "includes", lambda: ["-I."])
    for name in ("gmlake", "stweaver", "memo"):
        monkeypatch.setattr(sys.modules[f"seeds.{name}"], "smaller_card", smaller_card)
    return stand_in


@pytest.fixture
def made(machine, monkeypatch, tmp_path):
    """Runs the command. Gives its exit status and the file."""
    output = tmp_path / "table.json"

    def make(*words):
        words = ["tables.py", *words, "-o", str(output), "--commit", "abc"]
        monkeypatch.setattr(sys, "argv", words)
        return tables.main(), json.loads(output.read_text())

    return make


@pytest.mark.parametrize("size", ["--quick", "full"])
@pytest.mark.parametrize("asked", ALL, ids="-".join)
def test_a_table_is_made_of_what_a_machine_answers(asked, size, machine, made, capsys):
    seed, name = asked
    if seed in ("gmlake", "stweaver") and not has_command():
        pytest.skip("the command girih is not built into this package")
    words = [seed, name, *(["--quick"] if size == "--quick" else [])]
    status, kept = made(*words)
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert (kept["table"], kept["commit"]) == (f"{seed} {name}", "abc")
    assert kept["machine"] == "NVIDIA H200, 580.159"
    assert kept["sections"], printed
    for section in kept["sections"]:
        assert section["rows"], section
        for row in section["rows"]:
            assert len(row) == len(section["columns"]), (section["columns"], row)
            assert f"| {' | '.join(row)} |" in printed
    assert "/workloads/" not in json.dumps(kept["sections"])
    if name not in ("fig6", "table1") or seed != "gmlake":
        assert machine.launched


def test_shapes_have_a_card_each_and_their_rows_the_order_of_the_table(made, machine, monkeypatch):
    monkeypatch.setattr(sys.modules["seeds.bench"], "cards", lambda: 3)
    monkeypatch.setenv("GIRIH_TURNS", "turns")
    real, by_shape = machine.__call__, {}

    def watched(command, **options):
        words = [str(word) for word in command]
        if any("workloads/" in word for word in words):
            shape = " ".join(words[words.index("--layers") : words.index("--steps")])
            card = options["env"]["CUDA_VISIBLE_DEVICES"]
            assert options["env"]["GIRIH_TURNS"] == f"turns.{card}"
            by_shape.setdefault(shape, []).append(card)
            # The first that is launched ends last.
            time.sleep(0.2 / len(by_shape))
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    status, kept = made("chameleon", "table4")
    assert status == 0
    (section,) = kept["sections"]
    shapes = ["batch 24", "layers 11", "length 24576", "hidden 6016"]
    ways = ["recompute", "girih", "girih, products"]
    wanted = [["base", "plain"], *([shape, way] for shape in shapes for way in ways)]
    assert [row[:2] for row in section["rows"]] == wanted
    base, *others = by_shape.values()
    assert len(base) == 1
    assert [len(used) for used in others] == [3] * 4
    assert [len(set(used)) for used in others] == [1] * 4
    assert set().union(*others) == {"0", "1", "2"}


def test_the_price_of_chunks_is_a_multiple_of_the_whole(made):
    _, kept = made("gmlake", "table1")
    multiples, _ = kept["sections"]
    assert multiples["heading"] == "Multiples of cudaMalloc"
    assert multiples["columns"] == ["call", "2 MiB", "128 MiB", "1024 MiB"]
    by_call = {row[0]: row[1:] for row in multiples["rows"]}
    # 1,024, 16 and 2 chunks at a microsecond each, by ten of cudaMalloc.
    assert by_call["cuMemCreate"] == ["102.400", "1.600", "0.200"]
    assert by_call["in all"] == ["307.3", "4.9", "0.7"]


def test_what_was_printed_is_printed_again_from_the_file(made, tmp_path, capsys):
    made("gmlake", "table1")
    first = capsys.readouterr().out
    assert tables.kept([str(tmp_path / "table.json")]) == 0
    again = capsys.readouterr().out
    assert [line for line in again.splitlines() if line] == [
        line for line in first.splitlines() if line
    ]


def test_what_runs_out_of_memory_is_a_row_and_no_failure(made):
    status, kept = made("stweaver", "table1", "--quick")
    assert status == 0
    (section,) = kept["sections"]
    said = {(row[0], row[1]): row[-1] for row in section["rows"]}
    assert said["original", "native"] == "out of memory"
    assert said["original", "auto"] == ""


def test_a_launch_that_fails_otherwise_is_said_and_the_status_is_1(made, machine, monkeypatch):
    def broken(program, words):
        return machine.done("", 1, "ValueError: no such model\n")

    monkeypatch.setattr(machine, "workload", broken)
    status, kept = made("gmlake", "fig3")
    assert status == 1
    assert {row[-1] for row in kept["sections"][0]["rows"]} == {"ValueError: no such model"}


def test_a_program_that_is_killed_is_said_and_the_others_go_on(made, machine, monkeypatch):
    monkeypatch.setattr(machine, "workload", lambda program, words: machine.done("", -9))
    status, kept = made("gmlake", "fig10")
    assert status == 1
    replayed, ranks, measured = kept["sections"]
    assert replayed["rows"] == ranks["rows"] == []
    assert {row[-1] for row in measured["rows"]} == {"it ended without a word"}
    assert len([note for note in kept["notes"] if "it ended without a word" in note]) == 10


@pytest.mark.parametrize("asked", ["fig1a", "table5", "table3"])
def test_what_was_measured_before_a_program_was_ended_has_its_rows(asked, made, machine, tmp_path):
    real = machine.workload

    def ended(program, words):
        if len(machine.launched) == 2:
            raise KeyboardInterrupt
        return real(program, words)

    machine.workload = ended
    with pytest.raises(KeyboardInterrupt):
        made("memo", asked, "--quick")
    kept = json.loads((tmp_path / "table.json").read_text())
    assert not kept["finished"]
    (section,) = kept["sections"]
    assert [row[0] for row in section["rows"]] == [str(run["tokens"]) for run in kept["runs"]]
    assert len(section["rows"]) == 2


def test_a_launch_is_kept_though_its_table_has_its_rows_at_the_end(made, machine, tmp_path):
    real = machine.workload

    def ended(program, words):
        if machine.launched:
            raise KeyboardInterrupt
        return real(program, words)

    machine.workload = ended
    with pytest.raises(KeyboardInterrupt):
        made("gmlake", "fig14", "--quick")
    kept = json.loads((tmp_path / "table.json").read_text())
    assert kept["sections"] == []
    assert [run["mode"] for run in kept["runs"]] == ["native"]


def test_losses_of_launches_of_as_many_tokens_are_compared(made, machine):
    real = machine.workload

    def other(program, words):
        done = real(program, words)
        if "girih" in words:
            done.stdout = done.stdout.replace("0x1p+0", "0x1.8p+0")
        return done

    _, kept = made("memo", "fig1a", "--quick")
    assert [row[-1] for row in kept["sections"][0]["rows"]] == ["the same"] * 3
    machine.workload = other
    # All have the same short pass before all steps, whatever they keep.
    _, kept = made("memo", "table3", "--quick")
    rows = {(row[0], row[1]): row[-1] for row in kept["sections"][0]["rows"]}
    assert rows["32768", "recomputation"] == "the same"
    assert rows["32768", "Girih, alpha 0"] == "5.0e-01"


def test_steps_of_a_run_that_stopped_are_shown_up_to_there(made):
    status, kept = made("gmlake", "fig14", "--quick")
    assert status == 0
    (section,) = kept["sections"]
    natives = [row[1] for row in section["rows"]]
    assert natives == ["0.500, 0.00", "out of memory", *["-"] * 7]


def test_recordings_are_kept_where_somebody_wants_them(made, tmp_path):
    status, _ = made("stweaver", "table3", "--keep", str(tmp_path / "kept"))
    assert status == 0
    assert len(list((tmp_path / "kept").glob("*.girih"))) == 2


def test_experts_without_cargo_and_without_a_folder_are_not_recorded(made, machine, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="install cargo, or say --keep FOLDER"):
        made("stweaver", "table3")
    assert machine.launched == []


# ---- several tables at once ----


@pytest.fixture
def several(machine, monkeypatch, tmp_path):
    """Runs `record` or `replay`. Gives the exit status."""
    apart = sys.modules["seeds.apart"]
    monkeypatch.setattr(apart, "has_module", lambda name: True)

    def run(what, *words):
        keep = ["--keep", str(tmp_path / "kept"), "--commit", "abc"]
        monkeypatch.setattr(sys, "argv", ["tables.py", what, *words, *keep])
        return tables.main()

    return run


def index_of(tmp_path):
    return json.loads((tmp_path / "kept/index.json").read_text())


def test_recordings_that_two_tables_want_are_made_once_each_with_a_share(
    several, machine, tmp_path
):
    if not has_command():
        pytest.skip("the command girih is not built into this package")
    commands = []
    real = machine.workload
    machine.workload = lambda program, words: (commands.append(words), real(program, words))[1]
    assert several("record", "stweaver/fig2", "stweaver/fig7", "--at-once", "4", "--quick") == 0
    files = [one["file"] for one in index_of(tmp_path)["recordings"]]
    # Two whole ones and N, R, V, VR of rank 0 are figure 2's; figure 7 adds ZR and ZOR.
    assert len(files) == len(set(files)) == len(commands) == 2 + 4 + 2
    shares = {words[words.index("--solid") + 1] for words in commands}
    assert shares == {f"{int(0.6 * (CARD_MIB << 20) / 4)}B"}
    assert all("record" in words and "run" not in words for words in commands)


def test_what_was_recorded_becomes_tables_on_a_machine_without_a_gpu(
    several, machine, monkeypatch, tmp_path
):
    if not has_command():
        pytest.skip("the command girih is not built into this package")
    assert several("record", "stweaver/fig7", "gmlake/fig11", "--quick") == 0
    monkeypatch.setattr(tables, "cards", lambda: 0)
    monkeypatch.setattr(sys.modules["seeds.bench"], "has_module", lambda name: False)
    launched = len(machine.launched)
    assert several("replay", "-o", str(tmp_path)) == 0
    assert len(machine.launched) == launched
    fig7 = json.loads((tmp_path / "stweaver-fig7-bytes-quick.json").read_text())
    assert (fig7["commit"], fig7["machine"]) == ("abc", "NVIDIA H200, 580.159")
    assert fig7["finished"]
    assert [section["heading"] for section in fig7["sections"]] == [
        "Efficiency in percent, replayed"
    ]
    labels = [row[0] for row in fig7["sections"][0]["rows"]]
    assert labels[:2] == ["GPT-2 N", "GPT-2 R"]
    assert labels[-1] == "GPT-2 ZOR, rank 0 of 8"
    fig11 = json.loads((tmp_path / "gmlake-fig11-quick.json").read_text())
    assert [row[0] for row in fig11["sections"][0]["rows"]] == ["1 GPUs", "4 GPUs", "16 GPUs"]


def test_a_recording_that_failed_is_said_where_its_row_would_be(several, machine, tmp_path):
    if not has_command():
        pytest.skip("the command girih is not built into this package")
    real = machine.workload

    def broken(program, words):
        if words[words.index("--world") + 1] == "16":
            return machine.done("", 1, "ValueError: too many\n")
        return real(program, words)

    machine.workload = broken
    assert several("record", "gmlake/fig11", "--quick") == 1
    assert several("replay", "gmlake/fig11", "-o", str(tmp_path)) == 1
    fig11 = json.loads((tmp_path / "gmlake-fig11-quick.json").read_text())
    assert [row[0] for row in fig11["sections"][0]["rows"]] == ["1 GPUs", "4 GPUs"]
    assert "16 GPUs failed: ValueError: too many" in fig11["notes"]


def test_when_the_time_is_over_nothing_more_is_recorded(several, machine, tmp_path):
    assert several("record", "gmlake/fig12", "--seconds", "0") == 1
    errors = {one["error"] for one in index_of(tmp_path)["recordings"]}
    assert errors == {"the time was over before it began"}
    assert machine.launched == []


def test_what_is_timed_is_not_recorded_side_by_side_nor_bytes_in_turns(capsys):
    for words in (["record", "memo/table4", "--keep", "x"], ["together", "gmlake/fig11"]):
        with pytest.raises(SystemExit):
            tables.parse(words)
    assert f"{words[0]} makes" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        tables.parse(["record", "gmlake/fig11"])
    assert "record needs --keep FOLDER" in capsys.readouterr().err


def test_tables_that_take_a_part_of_the_card_away_come_after_the_others(machine, monkeypatch):
    apart = sys.modules["seeds.apart"]
    made = []

    def run_until(words, end, environment):
        made.append((words[2:], environment["GIRIH_TURNS"]))
        return True

    monkeypatch.setattr(apart, "run_until", run_until)
    argv = [
        "tables.py",
        "together",
        "gmlake/fig14",
        "stweaver/fig7",
        "memo/fig1a",
        "--at-once",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", argv)
    assert tables.main() == 0
    assert [words[:2] for words, _ in made] == [
        ["stweaver", "fig7"],
        ["memo", "fig1a"],
        ["gmlake", "fig14"],
    ]
    assert made[0][0][2:4] == ["--part", "times"]
    assert len({turns for _, turns in made}) == 1


def test_all_cards_are_used_and_one_that_was_given_away_is_not(machine, monkeypatch):
    apart = sys.modules["seeds.apart"]
    both, places = threading.Barrier(2, timeout=30), []

    def run_until(words, end, environment):
        card = environment["CUDA_VISIBLE_DEVICES"]
        places.append((words[3], card, Path(environment["GIRIH_TURNS"]).name))
        # Of two tables neither ends before the other has begun.
        both.wait()
        return True

    monkeypatch.setattr(apart, "run_until", run_until)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    names = ["memo/fig1a", "memo/table4", "gmlake/fig14", "stweaver/table1"]
    argv = ["tables.py", "together", *names, "--at-once", "1"]
    monkeypatch.setattr(sys, "argv", argv)
    assert tables.main() == 0
    assert {name for name, _, _ in places[:2]} == {"fig1a", "table4"}
    assert {name for name, _, _ in places[2:]} == {"fig14", "table1"}
    for pair in (places[:2], places[2:]):
        assert {card for _, card, _ in pair} == {"1", "3"}
        assert [card for _, card, _ in pair] == [turns for _, _, turns in pair]


def test_recordings_are_spread_over_the_cards_before_a_card_has_two(machine, monkeypatch):
    apart = sys.modules["seeds.apart"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    cards = apart.Cards(2)
    assert (cards.count, cards.places) == (2, 4)
    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(cards.one())[0] for _ in range(4)]
        assert names == ["0", "2", "0", "2"]


def has_ended(state):
    """Whether a process is gone, or will be within half a minute: a busy machine takes its time."""
    for _ in range(300):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if state.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                time.sleep(0.1)
                continue
        return True
    return False


def test_a_table_that_is_not_done_in_time_is_ended_with_what_it_started(capsys, tmp_path):
    apart = sys.modules["seeds.apart"]
    child = tmp_path / "child"
    program = (
        "import subprocess, sys, time\n"
        "it = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(child)!r}, 'w').write(str(it.pid))\n"
        "print('a row', flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-c", program]
    assert not apart.run_until(words, time.monotonic() + 5, dict(os.environ))
    said = capsys.readouterr().out
    assert "a row" in said
    assert "ended when the time was over" in said
    assert has_ended(Path(f"/proc/{child.read_text()}/stat"))
    assert apart.run_until([sys.executable, "-c", ""], time.monotonic() + 60, dict(os.environ))
    assert not apart.run_until(words, time.monotonic() - 1, dict(os.environ))


def test_a_file_of_a_table_that_was_cut_short_says_so(made, tmp_path, capsys):
    _, kept = made("gmlake", "table1")
    assert kept["finished"]
    (tmp_path / "table.json").write_text(json.dumps(kept | {"finished": False}))
    tables.kept([str(tmp_path / "table.json")])
    assert "The program was ended before this table was whole." in capsys.readouterr().out
