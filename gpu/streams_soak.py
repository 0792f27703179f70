"""A side stream reads what its owner has freed already, a million times; every element is checked.

    python gpu/streams_soak.py                                   torch's own allocator
    python -m girih run --mode stitch gpu/streams_soak.py        Girih
    python gpu/streams_soak.py --rounds 100000 --minutes 5 --seed 7

What a round does is said in `checks/late.py`. The last line is the result, as JSON: rounds, wrong
elements, mode, seconds. Exit status 1 if an element was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from checks.late import Rounds
from checks.registry import girih_mode


def allocator() -> str:
    """What is tested: Girih's mode, or torch's own allocator."""
    mode = girih_mode()
    return f"girih {mode}" if mode else f"torch {torch.cuda.get_allocator_backend()}"


def stitches() -> int | None:
    """How often Girih gave several holes as one; None under torch's own allocator."""
    if girih_mode() is None:
        return None
    import girih

    return girih.stats(0)["stitches"]


def main() -> int:
    """Runs the rounds, and says what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=30.0, help="ends after these, if earlier")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("SKIPPED: there is no GPU here")
        return 0
    begun = time.monotonic()
    rounds = Rounds(options.seed)
    while rounds.done < options.rounds and time.monotonic() - begun < 60 * options.minutes:
        rounds.round()
    wrong = rounds.wrong()
    result = {
        "rounds": rounds.done,
        "wrong_elements": wrong,
        "mode": allocator(),
        "stitches": stitches(),
        "seconds": round(time.monotonic() - begun, 1),
        "seed": options.seed,
        "reserved_peak": torch.cuda.max_memory_reserved(),
    }
    print(json.dumps(result), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
