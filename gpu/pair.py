"""What an allocation and its free cost, in C++, under torch's allocators and Girih's.

    python gpu/pair.py -o pair.json

Every row is a process of its own that calls `c10::Allocator::allocate` and drops what it gets, as
torch's operators do: one size in a row, the requests of one step of training in their order, and
one size in several threads at once. The step is recorded first, under torch's own allocator: a
transformer of 24 layers with AdamW. In the row `plan` it follows a plan. Nanoseconds for a pair,
the least of many batches: others disturb, nothing helps.
"""

import argparse
import array
import ctypes
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROWS = ("native", "expandable", "girih-native", "girih-expandable", "plan")
SOURCE = Path(__file__).resolve().parent / "workloads" / "pair.cpp"
SIZE = 4 << 20
THREADS = (1, 2, 4, 8)
PAIRS = 20_000
TRIES = 8
# Steps that a plan is made from.
RECORDED = 5


def compiled(folder: Path) -> Path:
    """The library of the calls."""
    from torch.utils.cpp_extension import include_paths, library_paths

    library = folder / "pair.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-shared", "-fPIC", str(SOURCE)]
    command += [f"-isystem{path}" for path in include_paths("cuda")]
    for path in library_paths("cuda"):
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    command += ["-lc10", "-lc10_cuda", "-pthread", "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def record(path: Path) -> None:
    """Writes the events of one step of training, as `replay` of the library takes them."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda")
    model = torch.nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.randn(4, 256, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    step()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    events = array.array("q")
    slots: dict[int, int] = {}
    requests = 0
    for event in trace:
        if event["action"] == "alloc":
            events.append(event["size"])
            requests += 1
            slots[event["addr"]] = requests
        # What was there before the step is not part of it.
        elif event["action"] == "free_requested" and event["addr"] in slots:
            events.append(-slots.pop(event["addr"]))
    path.write_bytes(events.tobytes())


def plan_of(step: Path) -> Path:
    """Where the plan of a recorded step lies."""
    return step.with_suffix(".plan")


def measure(row: str, library: Path, step: Path) -> dict[str, Any]:
    """One row, in this process."""
    import torch

    torch.zeros(1, device="cuda")
    calls = ctypes.CDLL(str(library))
    for call in (calls.one_size, calls.replay, calls.in_threads):
        call.restype = ctypes.c_double
    events = array.array("q", step.read_bytes())
    requests = sum(event > 0 for event in events)
    c_events = (ctypes.c_int64 * len(events)).from_buffer(events)

    def one_step() -> float:
        taken: float = calls.replay(
            c_events, ctypes.c_size_t(len(events)), ctypes.c_size_t(requests)
        )
        return taken / requests

    seen: dict[str, Any] = {"row": row, "requests": requests}
    if row in ("profile", "plan"):
        import girih

        taken = []
        before = girih.stats(0)
        for _ in range(RECORDED if row == "profile" else 10 * TRIES):
            with girih.step():
                taken.append(one_step())
        after = girih.stats(0)
        if row == "profile":
            girih.plan(str(plan_of(step)))
        found = {name: after[name] - before[name] for name in ("hits", "misses")}
        return {**seen, "stage": after["stage"], **found, "step_ns": min(taken)}
    seen["step_ns"] = min(one_step() for _ in range(10 * TRIES))
    size, pairs = ctypes.c_size_t(SIZE), ctypes.c_size_t(PAIRS)
    seen["one_size_ns"] = min(calls.one_size(size, pairs) for _ in range(TRIES))
    seen["threads_ns"] = {
        count: min(calls.in_threads(size, pairs, ctypes.c_size_t(count)) for _ in range(TRIES))
        for count in THREADS
    }
    return seen


def launched(row: str, library: Path, step: Path, cache: str) -> dict[str, Any]:
    """One row, in a process of its own."""
    environment = dict(os.environ)
    environment.pop("PYTORCH_ALLOC_CONF", None)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if row == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    program = [str(Path(__file__).resolve()), "--row", row, str(library), str(step)]
    if row not in ("native", "expandable", "record"):
        mode = row.removeprefix("girih-")
        plan = ["--plan", str(plan_of(step))] if mode == "plan" else []
        program = ["-m", "girih", "run", "--mode", mode, "--plan-dir", cache, *plan, *program]
    done = subprocess.run(
        [sys.executable, *program], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{row} failed:\n{done.stderr[-4000:]}")
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(said[-1]) if said else {}
    return found


def main() -> int:
    """Runs all rows, and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="a file for the results, as JSON")
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        row, library, step = arguments.row
        if row == "record":
            record(Path(step))
        else:
            print(json.dumps(measure(row, Path(library), Path(step))))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("SKIPPED: there is no GPU here")
        return 0
    with tempfile.TemporaryDirectory(prefix="girih-pair-") as folder:
        library, step = compiled(Path(folder)), Path(folder) / "step"
        launched("record", library, step, folder)
        launched("profile", library, step, folder)
        rows = [launched(row, library, step, folder) for row in ROWS]
    print(
        f"{'ns a pair':<18}{'one size':>10}{'a step':>10}  threads: " + ", ".join(map(str, THREADS))
    )
    for seen in rows:
        one = f"{seen['one_size_ns']:.1f}" if "one_size_ns" in seen else "-"
        threads = ", ".join(f"{ns:.0f}" for ns in seen.get("threads_ns", {}).values())
        print(f"{seen['row']:<18}{one:>10}{seen['step_ns']:>10.1f}  {threads}")
    planned = rows[-1]
    print(
        f"plan: {planned['stage']}, {planned['hits']} of {planned['hits'] + planned['misses']} "
        f"requests found in the plan; a step has {planned['requests']} requests"
    )
    if arguments.output:
        known = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(known, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
