"""Everything that goes wrong in a training run, on the GPU: nothing may be lost.

    python gpu/faults.py                            every test, in every mode
    python gpu/faults.py [--list] [NAME ...]        some tests
    python gpu/faults.py --modes auto,plan          some modes
    python gpu/faults.py -o faults.json             and everything that was seen

Each test starts a small training run, `faulty/program.py`, under Girih and under torch's own
allocator. It passes if both have the same losses and parameters bit by bit, if no tensor was
written to that should not have been, and if what it says of itself holds. A line for each test and
mode: PASS, FAIL with the reason, or SKIP with what is missing. Exit status 1 if anything failed.

`auto` learns a plan in the first five steps, and keeps it for the next launch; the fault comes in
the ninth. `plan` follows, from its first request, the plan that `auto` left of the run in which
nothing happens, so that every fault is off its plan. What a fault leaves behind lies where the plan
has places for others. So then it is only asked that no more is reserved than torch's expandable
segments would; where nothing is left behind, that all is as planned again.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import inspect
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faulty.bench import (
    CRASH,
    MODES,
    Bench,
    Child,
    agree,
    all_in_plan,
    equal,
    found_in_plan,
    quiet,
    same_losses,
    sound,
)
from modes import shareable

FOLLOWING = ("plan",)
STEPS = 14
MIB = 1 << 20
FAULT = 8
# The modes that may hold no more than torch's expandable segments: `expandable` is those.
BETTER = ("auto", "plan")
# The first step in which everything is as planned.
FOLLOWED_FROM = 2


class Skip(Exception):
    """The test says nothing here, for this reason."""


@dataclasses.dataclass(frozen=True)
class Test:
    """A test, and where it means something."""

    run: Callable[[Bench, str], None]
    text: str
    modes: tuple[str, ...] = MODES


TESTS: dict[str, Test] = {}


def test(
    *modes: str,
) -> Callable[[Callable[[Bench, str], None]], Callable[[Bench, str], None]]:
    """A test of these modes; of all without any."""

    def add(function: Callable[[Bench, str], None]) -> Callable[[Bench, str], None]:
        text = inspect.getdoc(function) or ""
        TESTS[function.__name__] = Test(function, text, modes or MODES)
        return function

    return add


@test("native")
def native_repeats_itself(bench: Bench, _: str) -> None:
    """Two runs under torch's own allocator agree; else nothing below means anything."""
    # The model is named, which it is not elsewhere: another launch of the same run.
    agree(bench.run("native", "plain", "--model", "small"), bench.run("native", "plain"))


def compare(bench: Bench, mode: str, *words: str, plan_of: tuple[str, ...] = ("plain",)) -> Child:
    """A run of a scenario, which agrees with torch's own allocator, followed its plan until the
    fault came, and holds no more than torch's expandable segments."""
    child, _ = bench.compare(mode, *words, plan_of=plan_of)
    if mode in FOLLOWING:
        for step in range(FOLLOWED_FROM, FAULT):
            all_in_plan(child.row(f"step {step}"))
    if mode in BETTER:
        below_expandable(bench, child, *words)
    return child


def below_expandable(bench: Bench, child: Child, *words: str) -> None:
    """Its peak is not above that of torch's expandable segments."""
    other = bench.run("torch-expandable", *words)
    sound(other)
    peak, limit = child.result["reserved_peak"], other.result["reserved_peak"]
    assert peak <= limit, (
        f"{peak / MIB:.0f} MiB were reserved, {limit / MIB:.0f} MiB by torch's expandable segments"
    )


@test()
def plain(bench: Bench, mode: str) -> None:
    """Nothing happens; with a plan, every request of a settled step is as planned."""
    child = compare(bench, mode, "plain")
    if mode in FOLLOWING:
        for step in range(FAULT, STEPS):
            all_in_plan(child.row(f"step {step}"))


@test()
def extra_kept(bench: Bench, mode: str) -> None:
    """One request more in an iteration, which stays alive."""
    compare(bench, mode, "extra_kept")


@test()
def extra_freed(bench: Bench, mode: str) -> None:
    """One request more in an iteration, freed at once: the next iteration is as planned."""
    child = compare(bench, mode, "extra_freed")
    if mode in FOLLOWING:
        for fault, following in (("odd", "step 9"), ("common", "step 12")):
            found_in_plan(child.row(fault))
            all_in_plan(child.row(following))


@test()
def evaluation(bench: Bench, mode: str) -> None:
    """The model is evaluated between steps: the same results, and the steps stay as planned."""
    child, native = compare(bench, mode, "evaluation"), bench.run("native", "evaluation")
    equal(child.result["told"], native.result["told"], "the evaluation")
    if mode in FOLLOWING:
        for step in (9, 11, 12, 13):
            all_in_plan(child.row(f"step {step}"))


@test()
def checkpoint(bench: Bench, mode: str) -> None:
    """Model and optimizer are saved and loaded back, equal, and trained on."""
    child = compare(bench, mode, "checkpoint")
    assert child.result["told"]["is_equal"], "what was loaded is not what was saved"


@test()
def skipped_step(bench: Bench, mode: str) -> None:
    """An iteration without its optimizer: the plan is found again."""
    child = compare(bench, mode, "skipped_step")
    if mode in FOLLOWING:
        all_in_plan(child.row("step 13"))


@test()
def scaler_skips(bench: Bench, mode: str) -> None:
    """A gradient overflows and GradScaler leaves the optimizer out: the plan is found again."""
    # The plan of this very run: one with a scaler is another program than one without.
    child = compare(bench, mode, "scaler_skips", plan_of=("scaler_skips",))
    native = bench.run("native", "scaler_skips")
    scales = native.result["told"]["scales"]
    assert min(scales) < max(scales), "no step was skipped: the test tests nothing"
    equal(child.result["told"]["scales"], scales, "the scales")
    if mode in FOLLOWING:
        all_in_plan(child.row("step 13"))


@test()
def batch_size(bench: Bench, mode: str) -> None:
    """Another batch size, smaller, larger, and back: no more memory than expandable segments."""
    child, _ = bench.compare(mode, "batch_size")
    if mode in BETTER:
        below_expandable(bench, child, "batch_size")


@test("plan")
def foreign_plan(bench: Bench, mode: str) -> None:
    """The plan of another model: no crash, the same losses, no more memory than without."""
    child, _ = bench.compare(mode, "plain", plan_of=("plain", "--model", "other"))
    below_expandable(bench, child, "plain")


@test()
def threads(bench: Bench, mode: str) -> None:
    """Two threads allocate, write, check and free while a third trains."""
    child, _ = bench.compare(mode, "threads")
    for number, report in enumerate(child.result["told"]["reports"]):
        assert report["rounds"] > 20, f"thread {number} came to {report['rounds']} rounds only"
        equal(report["wrong"], 0, f"thread {number}: tensors that someone else wrote to")


@test()
def record_stream(bench: Bench, mode: str) -> None:
    """A slow stream reads what was freed meanwhile: it reads the old values, also when planned."""
    # With the plan of this very run: the requests in question are planned.
    child, native = bench.compare(mode, "record_stream", plan_of=("record_stream",))
    equal(native.result["told"]["wrong"], 0, "torch's own allocator: copies that are wrong")
    told = child.result["told"]
    equal(told["wrong"], 0, f"of {told['rounds']} copies, those that are wrong")
    if mode in FOLLOWING:
        assert child.row("step 13")["hits"] > 0, "no plan is followed"


@test()
def oom_giant(bench: Bench, mode: str) -> None:
    """A request larger than the card: caught, and training goes on to the same losses."""
    child = compare(bench, mode, "oom_giant")
    out_of_memory(child, least=2)


@test()
def oom_fraction(bench: Bench, mode: str) -> None:
    """The process's limit falls to what is in use: caught, and training goes on."""
    child = compare(bench, mode, "oom_fraction")
    # Where saved tensors go to the host, a step within the limit may get through.
    went = child.result["swapped"]
    out_of_memory(child, least=1 if went else 2, got_through=bool(went))


def out_of_memory(child: Child, least: int, *, got_through: bool = False) -> None:
    """It did run out of memory, was told so in words, and was counted."""
    told = child.result["told"]
    ran_out = told["ran_out"] or got_through
    assert ran_out, "the step did not run out of memory: the test tests nothing"
    equal(len(told["texts"]), 1, "the number of errors caught within a pass")
    text = told["texts"][0]
    assert "out of memory" in text.lower(), f"the error says: {text}"
    assert "GiB" in text, f"the error has no numbers: {text}"
    assert child.result["ooms"] >= least, f"{child.result['ooms']} are counted, {least} happened"


# ---- the process killed ----


def kill_and_resume(bench: Bench, mode: str, place: str) -> None:
    """A launch that is killed, and a second one that goes on."""
    native = bench.run("native", "plain")
    sound(native)
    with tempfile.TemporaryDirectory(prefix="girih-faults-") as name:
        folder = Path(name)
        first = bench.launch(mode, "killed", folder=folder, environ={"FAULTS_KILL": place})
        equal(first.code, -9, f"the exit status of the first launch ({first.last_words()})")
        others = [path.name for path in (folder / "plans").glob("*") if path.suffix != ".plan"]
        # A file that was being written has a name of its own until it is whole.
        if not place.startswith("3:"):
            equal(others, [], "what is in the folder of plans besides plans")
        had_plan = any((folder / "plans").glob("*.plan"))
        second = bench.launch(mode, "killed", folder=folder)
        sound(second)
        assert "kept plan" not in second.stderr, f"the plan was not read: {second.last_words()}"
        start = second.result["told"]["start"]
        # The steps since the checkpoint are done twice.
        before = {step: loss for step, loss in first.losses.items() if step < start}
        same_losses(before | second.losses, native.losses)
        same_losses(first.losses, {s: native.losses[s] for s in first.losses})
        equal(second.result["checksum"], native.result["checksum"], "the checksum")
        if had_plan:
            # What is loaded comes before the first step, and lies in places of others.
            early = second.row(f"step {start}")
            assert early["hits"] > 0, "the plan that the first launch has kept is not followed"


@test("auto")
def killed_in_a_step(bench: Bench, mode: str) -> None:
    """Killed in a step, resumed from a checkpoint and with the plan: as if never killed."""
    kill_and_resume(bench, mode, "8:2:0")
    kill_and_resume(bench, mode, "11:0:0")


@test("auto")
def killed_while_planning(bench: Bench, mode: str) -> None:
    """Killed while the plan is made and written: no file is torn, and the run resumes."""
    chance = random.Random(3)
    for _ in range(2):
        kill_and_resume(bench, mode, f"3:-1:{chance.uniform(0, 0.03):.4f}")


# ---- the process's end ----

# How; the exit status; whether Python comes to its end, so that a report is written.
ENDS: dict[str, tuple[str, int, bool]] = {
    "sys_exit": ("by sys.exit", 7, True),
    "exception": ("by an exception that nobody catches", 1, True),
    "os_exit": ("by os._exit", 3, False),
    "sigterm": ("by SIGTERM", -15, False),
    "sigint": ("by SIGINT, a KeyboardInterrupt", -2, True),
    "capture": ("by sys.exit while a graph is captured", 7, True),
    "capture_os_exit": ("by os._exit while a graph is captured", 3, False),
    "threads": ("by sys.exit while threads allocate", 7, True),
    "threads_os_exit": ("by os._exit while threads allocate", 3, False),
    "live_tensors": ("with tensors, streams, graphs and cycles alive", 7, True),
    "planning": ("while the plan is made", 7, True),
}
ERRORS = {"exception": "KeyError: 'me'", "sigint": "KeyboardInterrupt"}


def moment(kind: str, turn: int) -> list[str]:
    """When it ends: drawn, but the same in every run of this script."""
    chance = random.Random(f"{kind} {turn}")
    at, layer, delay = chance.randrange(1, STEPS - 1), chance.randrange(-1, 4), chance.random()
    if kind == "planning":
        # Right after the step with which planning begins, then later and later.
        at, layer, delay = 3, -1, 0.01 * turn
    return ["--at", str(at), "--layer", str(layer), "--delay", f"{delay:.3f}"]


def leaves(kind: str, bench: Bench, mode: str) -> None:
    """Ends in this way a few times, each as under torch's own allocator."""
    _, code, is_orderly = ENDS[kind]
    native = bench.run("native", "exits", "--kind", kind, *moment(kind, 0))
    if kind == "sigint" and native.code == 1:
        code = 1  # Where the launcher ignores SIGINT, Python only prints the error.
    if native.code != code or CRASH.search(native.stderr):
        raise Skip(
            f"torch's own allocator ends with status {native.code} too: {native.last_words()}"
        )
    expected = bench.run("native", "plain").losses
    for turn in range({"auto": 2}.get(mode, 1) + (kind == "planning")):
        when = moment(kind, turn)
        child = bench.girih(mode, "exits", "--kind", kind, *when)
        where = " ".join(when)
        equal(child.code, code, f"the exit status, {where} ({child.last_words()})")
        quiet(child)
        if kind in ERRORS:
            lines = child.stderr.splitlines()
            assert ERRORS[kind] in lines, f"its error is lost, {where}: {child.last_words()}"
        seen = {step: loss for step, loss in child.losses.items() if step < STEPS}
        assert len(seen) >= int(when[1]), f"it ended after {len(seen)} steps, {where}"
        same_losses(seen, {step: expected[step] for step in seen})
        if is_orderly:
            equal(child.report()["mode"], mode, f"the report's mode, {where}")


def _add_ends() -> None:
    for kind, (text, *_) in ENDS.items():
        modes = ("auto",) if kind == "planning" else MODES

        def run(bench: Bench, mode: str, kind: str = kind) -> None:
            leaves(kind, bench, mode)

        TESTS[f"exit_{kind}"] = Test(run, f"The process ends {text}, at several moments.", modes)


_add_ends()


# ---- the harness ----


def judge(bench: Bench, name: str, mode: str) -> tuple[str, str]:
    """Runs a test in a mode. Gives the verdict and why."""
    try:
        TESTS[name].run(bench, mode)
    except Skip as reason:
        return "SKIP", str(reason)
    except Exception as error:
        text = str(error).strip().splitlines()
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return "FAIL", kind + (text[0] if text else "")
    return "PASS", ""


def has_gpu() -> bool:
    """True if the driver shows a device. CUDA is started for it, in this process only."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0


def save(path: Path, verdicts: list[dict[str, Any]], bench: Bench) -> None:
    """Writes everything that was seen."""
    children = []
    for child in bench.children():
        lines = [line for line in child.stdout.splitlines() if line.startswith("RESULT ")]
        result = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
        said = {"mode": child.mode, "words": child.words, "code": child.code}
        said |= {"seconds": round(child.seconds, 2), "stderr": child.stderr[-2000:]}
        children.append(said | {"result": result})
    found = shareable({"tests": verdicts, "children": children})
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    """Runs the tests that are named, or all. 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="says what each test is")
    parser.add_argument("--modes", default=",".join(MODES), help=f"of {','.join(MODES)}")
    parser.add_argument("--jobs", type=int, default=4, help="children at a time")
    parser.add_argument("-o", "--output", type=Path, help="a file for everything that was seen")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    if arguments.list:
        for name, one in TESTS.items():
            print(f"{name:<24} {one.text}")
        return 0
    if unknown := [name for name in arguments.names if name not in TESTS]:
        parser.error(f"no test is called {', '.join(unknown)}; --list shows them")
    modes = arguments.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"no mode here is called {', '.join(unknown)}; there are {', '.join(MODES)}")
    if not has_gpu():
        print("SKIPPED: there is no GPU here")
        return 0
    return run(arguments.names or list(TESTS), modes, arguments.jobs, arguments.output)


def run(names: list[str], modes: list[str], jobs: int, output: Path | None) -> int:
    """Runs tests side by side, and prints them in order."""
    wanted = [
        (name, mode)
        for name in names
        for mode in TESTS[name].modes
        if mode in modes or mode == "native"
    ]
    verdicts: list[dict[str, Any]] = []
    start = time.perf_counter()
    # Tests wait for children; how many of those there are is the bench's to say.
    with (
        tempfile.TemporaryDirectory(prefix="girih-faults-") as folder,
        ThreadPoolExecutor(max_workers=max(1, len(wanted))) as pool,
    ):
        bench = Bench(Path(folder), jobs)
        futures = [pool.submit(judge, bench, name, mode) for name, mode in wanted]
        for (name, mode), future in zip(wanted, futures, strict=True):
            verdict, reason = future.result()
            verdicts.append({"name": name, "mode": mode, "verdict": verdict, "reason": reason})
            print(f"{verdict} {name:<24} {mode:<11} {reason}".rstrip(), flush=True)
            if output:
                save(output, verdicts, bench)
        launched = len(bench.children())
    counts = {
        word: sum(one["verdict"] == word for one in verdicts) for word in ("PASS", "FAIL", "SKIP")
    }
    seconds = time.perf_counter() - start
    print(
        f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped; "
        f"{launched} runs, {seconds:.0f} s"
    )
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
