"""The command `python -m girih`.

python -m girih run [options] (script.py | -m module | -c code) [arguments]
python -m girih why RECORDING [--json]
python -m girih doctor [--json]
"""

from __future__ import annotations

import sys

USAGE = """\
usage: python -m girih run [options] (script.py | -m module | -c code) [arguments]
       python -m girih why RECORDING [--json]
       python -m girih doctor [--json]
       python -m girih --version

run     runs a program on Girih, unchanged; `python -m girih run --help` shows the options
why     says why a run was refused memory, and what would have fitted
doctor  says what works here and what does not, and why; exits 0 if training on Girih would work

With torchrun: torchrun --nproc-per-node 8 -m girih run train.py ...
"""


def main(words: list[str]) -> int:
    """Obeys the words after `python -m girih`. Gives the exit status."""
    command, *rest = words or [""]
    if command == "run":
        from girih import _run

        return _run.main(rest)
    if command == "why":
        from girih import _why

        return _why.main(rest)
    if command == "doctor":
        from girih import _doctor

        return _doctor.main(rest)
    if command in ("-V", "--version"):
        from girih._version import VERSION

        print(f"girih {VERSION}")
        return 0
    if command in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    mistake = f'there is no command "{command}"' if command else "no command"
    print(f"girih: {mistake}\n{USAGE}", end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
