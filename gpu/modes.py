"""One workload under every allocator, one after the other, in one run: a table, a file of results.

    python gpu/modes.py gpu/workloads/hf.py gpt2 --recompute --batch 64 --exact
    python gpu/modes.py --gpus 2 gpu/workloads/fsdp.py --recompute --batch 12
    python gpu/modes.py --only native,auto --repeat 2 -o result.json gpu/workloads/hf.py lora-13b

Rows: PyTorch's native allocator, its expandable segments, and Girih: `auto`, a first launch that
knows nothing, and `again`, a second launch, which follows the plan that the first one left from its
first request. `girih-native` and `girih-expandable` are Girih's rebuilt allocators; `gmlake` is
GMLake as published, `gmlake:16` with a fragmentation limit of 16 MiB; after an `@` stands an option
of Girih's, as in `stitch@swap=off`; `profile` records without a cache, and `plan` follows the plan
of that recording; `uncached` is torch without a cache at all, each request a cudaMalloc. Ratios of
step times are to the first native's of the same run, step by step, and the median of these; native
comes once more at the end, and its own ratio says how much of the others' is the card's. `losses`
says whether every loss is the first native's to the bit; without `--exact` of the workload native
does not even equal itself. Below the table stands what each row of Girih asked of the driver in the
settled steps.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODES = [
    *("native", "expandable", "uncached", "girih-native", "girih-expandable"),
    *("stitch", "gmlake", "auto", "again", "profile", "plan"),
]
TORCHS_OWN = ("native", "expandable", "uncached")
# Native again at the end: a card that has warmed up takes longer for the same step.
DEFAULT = "native,expandable,auto,again,native"
MIB = 1 << 20
# Seconds that a program has to end its ranks when it is asked to end.
TO_END_S = 20
# Driver calls that put streams in order; all others give, take or look at memory.
EVENTS = ("create_event", "record_event", "query_event", "wait_event", "synchronize")


def card_names(parser: argparse.ArgumentParser, wanted: int) -> list[str]:
    """So many of the cards that this process was given. An error of the command line if too few."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = visible.split(",") if visible else [str(card) for card in range(wanted)]
    if len(cards) < wanted:
        parser.error(f"--cards {wanted}, but CUDA_VISIBLE_DEVICES is {visible}")
    return cards[:wanted]


def plan_file(cache: str) -> str:
    """Where a run in the mode `profile` leaves its plan, for each rank."""
    return str(Path(cache) / "recorded.rank{rank}.plan")


def command(mode: str, arguments: argparse.Namespace, cache: str) -> list[str]:
    """The command line of one launch."""
    program = [arguments.workload, *arguments.rest]
    if mode not in TORCHS_OWN:
        own, _, option = mode.removeprefix("girih-").partition("@")
        own, _, limit = own.partition(":")
        own = "auto" if own == "again" else own
        girih = ["-m", "girih", "run", "--mode", own, "--plan-dir", cache]
        girih += ["--option", f"gmlake_limit={int(float(limit) * MIB)}"] if limit else []
        girih += ["--option", option] if option else []
        girih += ["--report", str(Path(cache) / f"report-{mode}.json")]
        girih += ["--plan", plan_file(cache)] if mode == "plan" else []
        # Recordings are wanted by some that call this, not by the command line.
        trace = getattr(arguments, "trace", None)
        girih += ["--trace", str(trace)] if trace else []
        # A recording becomes a plan at the end of the program.
        recorder = str(Path(__file__).resolve().parent / "workloads" / "recorded.py")
        program = [*girih, *([recorder, plan_file(cache)] if mode == "profile" else []), *program]
    if arguments.gpus == 1 and not arguments.torchrun:
        return [sys.executable, *program]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(arguments.gpus)]
    return (
        [*launcher, "--no-python", sys.executable, *program]
        if program[0] == "-m"
        else [*launcher, *program]
    )


def shareable(found: Any) -> Any:
    """The same without the paths of this machine, which say nothing elsewhere."""
    if isinstance(found, dict):
        return {name: shareable(value) for name, value in found.items()}
    if isinstance(found, list):
        return [shareable(value) for value in found]
    if isinstance(found, str):
        found = found.replace(str(Path(__file__).resolve().parents[1]) + "/", "")
        return re.sub(re.escape(tempfile.gettempdir()) + r"/[^\s\"':,]*", "TEMPORARY", found)
    return found


def printed(output: str, word: str = "RESULT") -> list[dict[str, Any]]:
    """What the ranks printed as RESULT. Two that print at once may share a line."""
    decode = json.JSONDecoder().raw_decode
    return [decode(part)[0] for part in output.split(f"{word} ")[1:]]


def waited(
    command: list[str], timeout: float, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, as `subprocess.run` does; but that would kill a launcher of ranks
    which takes too long and leave the ranks, in sessions of their own, with the memory of GPUs.

    Such a one is asked to end first, which ends its ranks; what it printed until then is a part of
    the exception.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException as stopped:
            process.terminate()
            try:
                stdout, stderr = process.communicate(timeout=TO_END_S)
            except subprocess.TimeoutExpired as late:
                # Whoever else has its pipes is not waited for.
                process.kill()
                process.wait()
                # Bytes, whatever was asked for.
                stdout, stderr = (
                    (it or b"").decode(errors="replace") for it in (late.stdout, late.stderr)
                )
            if isinstance(stopped, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(command, timeout, stdout, stderr) from None
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def ran(
    command: list[str], timeout: int, word: str, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str] | str:
    """Runs a program that prints a word with what it measured. If it failed its error, a line and
    what was said behind it."""
    try:
        done = waited([sys.executable, *command], timeout, environ)
    except subprocess.TimeoutExpired as stopped:
        # The last line may be cut short.
        steps = re.findall(r"STEP ([\d.]+)\n", str(stopped.stdout or ""))
        last = f", after {len(steps)} steps, the last of {', '.join(steps[-8:])} s"
        return f"ran past {timeout} s" + (last if steps else "")
    if done.returncode != 0 or f"{word} " not in done.stdout:
        lines = done.stderr.splitlines()
        at = max((at for at, line in enumerate(lines) if "Error" in line), default=None)
        return done.stderr[-1500:] if at is None else "\n".join(lines[at:])[:3000]
    return done


def in_a_line(error: str) -> str:
    """The beginning of an error, as a cell."""
    return error.partition("\n")[0][:90]


def launch(
    mode: str, arguments: argparse.Namespace, cache: str, environ: dict[str, str] | None = None
) -> dict[str, Any]:
    """Runs the workload once, in another environment if one is given.

    What it printed as RESULT, by rank, or how it failed.
    """
    environment = dict(environ or os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    environment.pop("PYTORCH_ALLOC_CONF", None)
    if mode == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if mode == "uncached":
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    try:
        done = waited(command(mode, arguments, cache), arguments.timeout, environment)
    except subprocess.TimeoutExpired:
        return {"mode": mode, "error": f"ran past {arguments.timeout} s", "stderr": ""}
    every = printed(done.stdout)
    results = [result for result in every if "rank" in result]
    if done.returncode != 0 or not results:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        # Launchers add much below the error; the program's own word is what counts.
        errors = [line for line in said if re.match(r"(\[.*?\]: ?)?[\w.]+Error\b", line)]
        error = errors[0] if errors else "\n".join(said[-25:])
        known = {"error": error.strip(), "exit": done.returncode}
        if stopped := printed(done.stdout, "STOPPED"):
            known["stopped"] = stopped[0]
        return {"mode": mode, **known, "stderr": done.stderr[-20_000:]}
    reports = {}
    for path in sorted(Path(cache).glob(f"report-{mode}*.json")):
        reports[path.stem] = json.loads(path.read_text())
        path.unlink()
    ranks = {str(result["rank"]): result for result in results}
    # What a script of somebody else's says of itself (`workloads/peaks.py`).
    own = [result for result in every if "rank" not in result]
    ran = {"mode": mode, "ranks": ranks, "girih": reports, "stderr": done.stderr[-2000:]}
    return ran | ({"own": own} if own else {})


def step_ratio(seen: dict[str, Any], base: dict[str, Any]) -> float:
    """How many times as long a settled step takes as that of another launch: the median over steps,
    each compared with the same step there. Where lengths vary no step is like another."""
    start = seen.get("settled_from")
    if start is None or start != base.get("settled_from"):
        return float(seen["median_step_s"] / base["median_step_s"])
    pairs = zip(seen["step_s"][start:], base["step_s"][start:], strict=True)
    return float(statistics.median(one / other for one, other in pairs))


def row(run: dict[str, Any], native: dict[str, Any] | None) -> str:
    """One line of the table for each rank."""
    if "error" in run:
        return f"{run['mode']:<17} FAILED {run['error'][-400:]}"
    lines = []
    for rank, seen in run["ranks"].items():
        ratio = losses = ""
        if native and rank in native.get("ranks", {}):
            base = native["ranks"][rank]
            ratio = f"{step_ratio(seen, base):.4f}"
            losses = "same" if seen["exact_losses"] == base["exact_losses"] else "DIFFER"
        cells = [
            f"{run['mode']:<17}{rank:>4}",
            f"{seen['allocated_peak'] / MIB:>10.0f} {seen['reserved_peak'] / MIB:>10.0f}",
            f"{seen['efficiency']:>8.4f} {seen['settled_efficiency']:>8.4f}",
            f"{seen['device_used'] / MIB:>10.0f} {seen['first_step_s']:>8.3f}",
            f"{seen['median_step_s']:>9.4f} {ratio:>8} {losses:>7} {seen['retries']:>4}",
        ]
        lines.append(" ".join(cells))
    return "\n".join(lines)


def settled(run: dict[str, Any]) -> list[str]:
    """What Girih did in the settled steps: a line for each rank; none for torch's allocators."""
    lines = []
    for rank, seen in run.get("ranks", {}).items():
        if "settled_calls" not in seen:
            continue
        calls, changes = seen["settled_calls"], seen["settled_changes"]
        events = {name: calls[name] for name in EVENTS if name in calls}
        memory = {name: count for name, count in calls.items() if name not in EVENTS}
        requests = changes["hits"] + changes["misses"]
        lines.append(
            f"{run['mode']:<17}{rank:>4} driver calls in {seen['settled_steps']} settled steps: "
            f"{listed(memory)}; events: {listed(events)}; misses {changes['misses']} of {requests}"
            f" ({changes['miss_bytes'] / MIB:.1f} of"
            f" {(changes['hit_bytes'] + changes['miss_bytes']) / MIB:.1f} MiB), waits"
            f" {changes['waits']}, then {seen['stage']}"
        )
    return lines


def listed(counts: dict[str, int]) -> str:
    """The sum, and what it is of."""
    parts = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{sum(counts.values())} ({parts})" if parts else "0"


def summary(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> Any:
    """What is kept of these launches."""
    workload = [arguments.workload, *arguments.rest]
    # What was said beside the result is no result.
    kept = [{key: run[key] for key in run if key != "stderr"} for run in runs]
    return shareable({"workload": workload, "gpus": arguments.gpus, "runs": kept})


def write(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Writes what was measured so far, if a file was asked for."""
    if arguments.output:
        arguments.output.write_text(json.dumps(summary(runs, arguments), indent=1) + "\n")


def main() -> int:
    """Runs what the command line asks for. 1 if a launch failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=DEFAULT, help=f"of {','.join(MODES)},gmlake:MIB")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--torchrun", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=280)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("workload")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    print(f"{arguments.workload} {' '.join(arguments.rest)}  ({datetime.date.today()})")
    print(
        f"{'allocator':<17}{'rank':>4} {'alloc MiB':>10} {'resv MiB':>10} {'eff':>8} {'settled':>8}"
        f" {'device MiB':>10} {'first s':>8} {'median s':>9}"
        f" {'/native':>8} {'losses':>7} {'retr':>4}",
        flush=True,
    )
    runs: list[dict[str, Any]] = []
    native = None
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(arguments.repeat):
            for mode in arguments.only.split(","):
                run = launch(mode, arguments, cache)
                if native is None and mode == "native" and "error" not in run:
                    native = run
                runs.append(run)
                print(row(run, native), flush=True)
                # Whatever ends this program, what was measured by then is kept.
                write(runs, arguments)
    for run in runs:
        for line in settled(run):
            print(line, flush=True)
    return int(any("error" in run for run in runs))


if __name__ == "__main__":
    sys.exit(main())
