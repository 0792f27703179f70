"""How soon bytes of a tensor that went to the host serve another request: Girih, and record_stream.

    python gpu/reuse.py -o reuse.json
    python gpu/reuse.py --budget 30GiB -- --layers 5 --batch 16

Each row is a launch of `workloads/reused.py`. `streams` copies every saved tensor out on a stream
of its own and marks it with `record_stream`, so PyTorch's allocator has the block back when a later
request finds that stream done with it; `capped` is the same where PyTorch may hold no more than
Girih's budget. `girih` swaps within that budget. Of one settled step each tensor that went is
followed in PyTorch's memory history, from the free of its block, when its owner is done with it,
to the first request that is given a part of its bytes. Under `girih` that free is the heap's, once
the stream waits for the copy. Columns: tensors that went; of how many the reuse was seen (a block
that is stitched into a view serves under other addresses, which the history does not show); us
until the allocator had the block back, median; us and requests until the reuse, median and mean;
the same mean by bytes; how many times `girih`'s mean us the row's is. Times are the host's.
"""

import argparse
import datetime
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from modes import ran, shareable

WORKLOAD = str(Path(__file__).resolve().parent / "workloads" / "reused.py")
WAYS = ("girih", "streams", "capped")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
HEAD = (
    f"{'way':<8} {'went':>5} {'seen':>5} {'back us':>8} {'us median':>10} {'us mean':>10}"
    f" {'by bytes':>10} {'requests':>8} {'mean':>7} {'ratio':>7}"
)


def bytes_of(text: str) -> int:
    """A size with its unit."""
    found = re.fullmatch(r"([0-9.]+)(MiB|GiB)", text)
    if not found:
        raise SystemExit(f"write the budget as 24GiB: it is {text}")
    return int(float(found[1]) * UNITS[found[2]])


def launch(way: str, budget: str, shape: list[str], timeout: int) -> dict[str, Any]:
    """Runs the workload once."""
    command = [WORKLOAD, "--way", "plain" if way == "girih" else "streams", *shape]
    if way == "capped":
        command += ["--cap", str(bytes_of(budget))]
    with tempfile.TemporaryDirectory() as folder:
        if way == "girih":
            command = [
                *("-m", "girih", "run", "--plan-dir", folder, "--gpu-budget", budget),
                *command,
            ]
        done = ran(command, timeout, "REUSE")
    if isinstance(done, str):
        return {"way": way, "error": done}
    seen = json.JSONDecoder().raw_decode(done.stdout.split("REUSE ")[1])[0]
    return {"way": way, **seen, **summary(seen["reuses"])}


def summary(reuses: list[Any]) -> dict[str, Any]:
    """Medians and means of what was followed: rows of bytes, us pending, us, requests."""
    whole = [it for it in reuses if it[2] is not None]
    if not whole:
        return {"went": len(reuses), "seen": 0}
    sizes, _, times, requests = zip(*whole, strict=True)
    by_bytes = sum(size * us for size, us in zip(sizes, times, strict=True)) / sum(sizes)
    return {
        "went": len(reuses),
        "seen": len(whole),
        "back_us_median": statistics.median(it[1] for it in reuses),
        "us_median": statistics.median(times),
        "us_mean": statistics.fmean(times),
        "us_by_bytes": by_bytes,
        "requests_median": statistics.median(requests),
        "requests_mean": statistics.fmean(requests),
    }


def line(run: dict[str, Any], base: dict[str, Any] | None) -> str:
    """One line of the table."""
    if "error" in run:
        return f"{run['way']:<8} FAILED {run['error'][:150]}"
    if not run["seen"]:
        return f"{run['way']:<8} {run['went']:>5} {0:>5}  nothing that went was seen to serve again"
    ours = base["us_mean"] if base else 0.0
    ratio = f"{run['us_mean'] / ours:.2f}" if ours else ""
    return (
        f"{run['way']:<8} {run['went']:>5} {run['seen']:>5} {run['back_us_median']:>8.0f}"
        f" {run['us_median']:>10.0f} {run['us_mean']:>10.0f} {run['us_by_bytes']:>10.0f}"
        f" {run['requests_median']:>8.0f} {run['requests_mean']:>7.1f} {ratio:>7}"
    )


def main() -> int:
    """Runs what the command line asks for. 1 if a launch failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(WAYS), help=f"these ways: {','.join(WAYS)}")
    parser.add_argument("--budget", default="24GiB")
    parser.add_argument("--timeout", type=int, default=500, help="seconds, of one launch")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("rest", nargs="*", help="further options of the workload, after --")
    options = parser.parse_args()
    shape = options.rest or ["--layers", "5", "--batch", "8"]
    bytes_of(options.budget)
    print(HEAD, flush=True)
    runs: list[dict[str, Any]] = []
    for way in options.only.split(","):
        run = launch(way, options.budget, shape, options.timeout)
        runs.append(run)
        base = next((it for it in runs if it["way"] == "girih" and it.get("seen")), None)
        print(line(run, base), flush=True)
        if options.output:
            stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            known = {"when": stamp, "budget": options.budget, "shape": shape}
            options.output.write_text(
                json.dumps(known | {"runs": shareable(runs)}, indent=1) + "\n"
            )
    return int(any("error" in run for run in runs))


if __name__ == "__main__":
    sys.exit(main())
