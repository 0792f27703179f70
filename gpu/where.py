"""Where a step's time goes: what the GPU does, kernel by kernel, in several ways side by side.

    python gpu/where.py --only plain,split:0,both:products --budget 15423MiB -o where.json -- \\
        --layers 4 --batch 1 --length 32768

Ways and options are those of `swap.py`. For each way one settled step is looked at: its time, how
long the stream of the computation is busy and idle in it, what other streams do (copies), and the
kernels that take longer or more often than in the first way.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from swap import launch

NAME_MOST = 90


def kernels(seen: dict[str, Any], first: dict[str, Any], most: int) -> list[str]:
    """Those whose sum differs most from that of the first way."""
    before, now = first["kernels"], seen["kernels"]
    none = [0, 0.0]
    found = [(now.get(name, none)[1] - before.get(name, none)[1], name) for name in {*before, *now}]
    found.sort(key=lambda one: -abs(one[0]))
    lines = []
    for more, name in found[:most]:
        was, is_now = before.get(name, none), now.get(name, none)
        counts = f"{was[0]} -> {is_now[0]}"
        lines.append(f"  {more / 1e3:>+9.2f} ms  {counts:<12} {name[:NAME_MOST]}")
    return lines


def main() -> int:
    """Runs the ways one after another. 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="plain,recompute,split:0", help="ways, as swap.py's")
    parser.add_argument("--budget", default="15423MiB")
    parser.add_argument("--host-budget", default="")
    parser.add_argument("--kernels", type=int, default=16, help="so many are printed")
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("shape", nargs="*", help="options of workloads/longer.py")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    words = [*options.shape, "--where"]
    for way in options.only.split(","):
        run = launch(way, options.budget, options.host_budget, words, options.timeout)
        if "error" in run or "where" not in run:
            print(f"{way}: {run.get('error', 'nothing was seen')[-300:]}", flush=True)
            continue
        seen = found[way] = run["where"]
        first = next(iter(found.values()))
        copies = {name: f"{us / 1e3:.1f}" for name, us in seen["other_streams_us"].items()}
        print(
            f"{way}: {seen['step_us'] / 1e3:.1f} ms, busy {seen['busy_us'] / 1e3:.1f}, idle"
            f" {seen['idle_us'] / 1e3:.1f}; other streams, ms: {copies}"
        )
        idle = [f"{us / 1e3:.1f} before {name}" for us, name in seen["longest_idle"][:8]]
        print(f"  longest idle, ms: {'; '.join(idle)}")
        if seen is not first:
            print("\n".join(kernels(seen, first, options.kernels)), flush=True)
        if swap := run["seen"].get("swap"):
            found[way]["swap"] = swap
            said = {name: swap[name] for name in swap if "wait" in name or "us" in name}
            print(f"  {said}")
        if options.output:
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(len(found) < len(options.only.split(",")))


if __name__ == "__main__":
    sys.exit(main())
