"""README's numbers are those of bench/results, which say where they are from."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tables_are_those_of_the_results() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "bench"), "--readme", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
