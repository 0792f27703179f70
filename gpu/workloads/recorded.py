"""Runs a program under the mode `profile`, and leaves a plan of what it asked for.

    python -m girih run --mode profile gpu/workloads/recorded.py PLAN program.py arguments...

Without a cache there is no fragmentation, so that a run can be recorded, slowly, which no launch of
`auto` gets through. The program's name and arguments become what they would be without this one.
`{rank}` in the name of the plan stands for the number of the process.
"""

import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Runs the program, then plans."""
    plan, program = sys.argv[1], sys.argv[2]
    sys.argv = sys.argv[2:]
    # Python would have put the program's folder there.
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")
    import girih

    path = plan.replace("{rank}", os.environ.get("RANK", "0"))
    print("PLAN " + json.dumps(girih.plan(path)), flush=True)


if __name__ == "__main__":
    main()
