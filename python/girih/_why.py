"""Why a run was refused memory: asked from inside, and written when a run dies.

The answer is that of the command `girih why`, by the same code. It needs a recording: torch's
memory history must be on before the model is built.
"""

from __future__ import annotations

import json
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from girih import _imports, _paths
from girih._errors import GirihError

# Entries of the history at most; of a longer run the oldest go, and the answer says so.
_ENTRIES = 1_000_000
_WIDTH = 80


class Answer(dict[str, Any]):
    """The fields of `girih why --json`; as text, what a person reads."""

    def __str__(self) -> str:
        """The verdict, what shows it, which lines, and what to do."""
        lines = [*_wrapped(self["sentence"], "")]
        for sentence in self["evidence"]:
            lines += _wrapped(sentence, "  ")
        if self["would_fit"]:
            lines += ["", "would it have fitted?"]
        for fit in self["would_fit"]:
            answer = f"yes, {_size(fit['spare'])} to spare" if fit["fits"] else "no"
            lines.append(f"  {fit['setting']:<34}{answer}")
        if self["lines"]:
            lines += ["", "alive"]
        for line in self["lines"]:
            size, place = _size(line["bytes"]), line["where"]
            lines.append(f"  {size:>9} in {line['count']:<6} {line['category']:<12} {place}")
        if self["advice"]:
            lines += ["", "What to do"]
        for number, sentence in enumerate(self["advice"], 1):
            lines += _wrapped(sentence, f"{number}. ")
        return "\n".join(lines)


def _wrapped(text: str, begin: str) -> list[str]:
    import textwrap

    indent = " " * len(begin)
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _size(count: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.2f} {unit}"
    return f"{count} B"


def ask(
    recording: bytes,
    name: str,
    *,
    text: str = "",
    device: int | None = None,
    capacity: int | None = None,
    card: int | None = None,
) -> Answer:
    """Asks about a recording.

    Raises:
        GirihError: if it is no recording, or has no events.
    """
    from girih import _native

    try:
        said = _native.why_refused(
            recording, name, text=text, device=device, capacity=capacity, card=card
        )
    except ValueError as error:
        raise GirihError(str(error)) from error
    return Answer(json.loads(said))


def of_process(error: BaseException | None, device: int | None) -> Answer:
    """Asks about this process, of which torch has a history."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise GirihError("import torch first: there is nothing to ask about without it")
    snapshot = torch.cuda.memory._snapshot()
    if error is None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    text = str(error) if error is not None else ""
    card = None
    if torch.cuda.is_available():
        card = torch.cuda.mem_get_info(device)[1]
    return ask(pickle.dumps(snapshot, protocol=4), "this run", text=text, device=device, card=card)


def of_file(path: Path, device: int | None) -> Answer:
    """Asks about a file, and the log beside it."""
    try:
        recording = path.read_bytes()
    except OSError as error:
        raise GirihError(f"cannot read {path}: {error}") from error
    stem = path.name
    for ending in (".gz", ".zst", ".pickle", ".pkl", ".girih"):
        stem = stem.removesuffix(ending)
    log = path.with_name(f"{stem}.log")
    text = log.read_text(errors="replace") if log.is_file() else ""
    return ask(recording, stem, text=text, device=device)


# ---- python -m girih run --why ----


def record() -> None:
    """Has torch keep a history from the moment in which the program uses CUDA first."""

    def begin(torch: Any) -> None:
        def keep() -> None:
            torch.cuda.memory._record_memory_history(max_entries=_ENTRIES, stacks="python")

        # Before CUDA starts there is no device whose history could be kept.
        torch.cuda._lazy_call(keep)

    _imports.when_imported("torch", begin)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, is torch's of memory."""
    seen: BaseException | None = error
    for _ in range(100):
        if seen is None:
            return False
        if type(seen).__name__ in ("OutOfMemoryError", "AcceleratorOutOfMemoryError"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def write(error: BaseException, path: str) -> None:
    """Writes why the run died: `path`, and beside it the recording and the error. Says where."""
    answer_path = Path(_paths.own(path))
    try:
        torch = sys.modules["torch"]
        recording = pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)
        answer_path.with_suffix(".pickle").write_bytes(recording)
        text = "".join(traceback.format_exception(error))
        answer_path.with_suffix(".log").write_text(text)
        answer = of_process(error, None)
        _paths.write_whole(str(answer_path), f"{answer}\n")
    except (GirihError, OSError, KeyError, RuntimeError) as trouble:
        print(f"girih: why the run died is not written: {trouble}", file=sys.stderr)
        return
    print(f"girih: {answer['sentence']}", file=sys.stderr)
    print(f"girih: more in {answer_path}; the recording is beside it", file=sys.stderr)
