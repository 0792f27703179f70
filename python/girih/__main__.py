"""The command `python -m girih`.

python -m girih run [options] (script.py | -m module | -c code) [arguments]
python -m girih record --world N --rank R [options] script.py [arguments]
python -m girih top [--json]
python -m girih doctor [--json]
python -m girih why RECORDING ...       and every other command of `girih`
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

USAGE = """\
usage: python -m girih run [options] (script.py | -m module | -c code) [arguments]
       python -m girih record --world N --rank R [options] script.py [arguments]
       python -m girih top [--json]
       python -m girih doctor [--json]
       python -m girih why RECORDING [options]
       python -m girih --version

run     runs a program on Girih, unchanged; `python -m girih run --help` shows the options
record  records a program as one rank of a job of any size, on one GPU
top     shows what programs that run on Girih hold now
doctor  says what works here and what does not, and why; exits 0 if training on Girih would work
why     says why a run was refused memory, and what would have fitted

why and all commands that are not named here (compare, plan, stats, ...) are those of the program
`girih`, which `girih --help` lists.

With torchrun: torchrun --nproc-per-node 8 -m girih run train.py ...
"""


# Exit status of what Ctrl-C has ended: 128 and the number of SIGINT.
_INTERRUPTED = 130
# Commands that are this package's own, and the modules whose `main` obeys them.
_OWN = {"run": "_run", "record": "_record", "top": "_top", "doctor": "_doctor"}


def main(words: list[str]) -> int:
    """Obeys the words after `python -m girih`. Gives the exit status."""
    command, *rest = words or [""]
    if command in _OWN:
        module = importlib.import_module(f"girih.{_OWN[command]}")
        return _obey(module.main, rest, is_program=command in ("run", "record"))
    if command in ("-V", "--version"):
        from girih._version import VERSION

        print(f"girih {VERSION}")
        return 0
    if command in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if not command:
        print(f"girih: no command\n{USAGE}", end="", file=sys.stderr)
        return 2
    return _become_program(words)


def _obey(command: Callable[[list[str]], int], words: list[str], *, is_program: bool) -> int:
    """Ctrl-C ends a command with a word and no traceback. A program under `run` has its own way."""
    try:
        return command(words)
    except KeyboardInterrupt:
        if is_program:
            raise
        print("girih: cut short by Ctrl-C", file=sys.stderr)
        return _INTERRUPTED


def _become_program(words: list[str]) -> int:
    """Hands over to the program `girih`; comes back only if it is not there."""
    from girih import _command
    from girih._errors import GirihError

    try:
        _command.become(words)
    except (GirihError, OSError) as error:
        print(f'girih: "{words[0]}" is a command of the program girih: {error}', file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
