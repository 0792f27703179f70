"""What `gpu/swap.py` makes of a launch's numbers."""

import importlib
import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[2] / "gpu"

sys.path.insert(0, str(GPU))
swap = importlib.import_module("swap")
sys.path.remove(str(GPU))


def test_what_a_step_did_is_of_numbers_alone() -> None:
    """The driver's seconds are told by call, and are no column."""
    changed = {"swap.bytes_out": 8_000_000_000, "driver_seconds_by_call": {"map": 0.5}}
    seen = {"settled_changes": changed, "settled_steps": 4}
    assert swap.changes(seen) == {"swap.bytes_out": 2_000_000_000}


def test_a_row_is_printed() -> None:
    """With all that a launch of this build says of its settled steps."""
    seen = {
        "settled_changes": {"swap.bytes_out": 8_000_000_000, "driver_seconds_by_call": {}},
        "settled_steps": 4,
        "median_step_s": 0.5,
        "first_step_s": 1.0,
        "digests": ["a", "b"],
        "allocated_peak": 1 << 30,
        "reserved_peak": 2 << 30,
        "swap": {"sequences": [{"step_us_swapped": 400_000.0, "has_policy": True}]},
    }
    line = swap.line("own", {"way": "girih", "seen": seen}, None, ["a", "b"])
    assert "same" in line
    assert line.split()[-2:] == ["0.400", "1.250"]
