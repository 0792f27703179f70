"""Any training script as it is, and at its end what it held of the GPU.

    python gpu/workloads/peaks.py train.py --its options
    python -m girih run gpu/workloads/peaks.py train.py --its options

The script knows nothing of this. Its peaks are taken from PyTorch's own statistics when it has
ended, and printed as the workloads print theirs; there are no steps to tell apart here.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
from measure import girih_stats, take_turn


def main() -> None:
    """Runs the script of the command line."""
    if len(sys.argv) < 2:
        sys.exit("peaks.py: which script? python peaks.py SCRIPT [its options]")
    if (turns := os.environ.get("GIRIH_TURNS")) and os.environ.get("RANK", "0") == "0":
        take_turn(turns)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    # Python would have put the script's folder there.
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    allocated = stats["allocated_bytes.all.peak"]
    reserved = stats["reserved_bytes.all.peak"]
    seen = {
        "rank": int(os.environ.get("RANK", "0")),
        "allocated_peak": allocated,
        "reserved_peak": reserved,
        "efficiency": allocated / max(1, reserved),
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "settled_device_calls": stats["num_device_alloc"] + stats["num_device_free"],
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "girih": girih_stats(),
    }
    print("RESULT " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
