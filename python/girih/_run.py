"""`python -m girih run`: a program on Girih, unchanged.

The program becomes `__main__` as Python itself would make it: its own module under that name, its
`sys.argv`, the same first entry of `sys.path`. Girih is enabled in the moment in which the program
imports torch. So a program that settles CUDA_VISIBLE_DEVICES before that may do so, and one that
never imports torch runs as if nothing were there. What the program starts in other Python processes
gets the same settings (see `_bootstrap`).
"""

from __future__ import annotations

import argparse
import builtins
import importlib.machinery
import importlib.util
import logging
import os
import runpy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from girih import _bootstrap, _key, _paths, _process, _settings, _summary, _why
from girih._errors import GirihError

_USAGE = "python -m girih run [options] (script.py | -m module | -c code) [arguments]"


def main(words: list[str]) -> int:
    """Runs what the words say. Gives the exit status, or raises what the program raises."""
    own, program = split(words)
    options = _parser().parse_args(own)
    if not program:
        _parser().error("no program: name a script, -m and a module, or -c and code")
    try:
        settings = _settings_of(options)
        refuse_what_heaps_refuse(settings)
        report = str(Path(options.report).absolute()) if options.report else None
        refuse_unwritable("--report", report)
        why = str(Path(options.why).absolute()) if options.why else None
        refuse_unwritable("--why", why)
        if settings.trace:
            refuse_unwritable("--trace", _paths.own(settings.trace, 0))
        _refuse_no_folder("--plan-dir", settings.plan_dir)
    except GirihError as error:
        print(f"girih: {error}", file=sys.stderr)
        return 2
    if options.verbose:
        _say_what_is_done()
    _settings.to_environ(settings, os.environ)
    _paths.launch(os.environ)
    _bootstrap.reach_children()
    _process.at_exit(
        lambda: _summary.show(settings, report=report, is_quiet=options.quiet),
        writes=report is not None,
    )
    if why is not None:
        _why.record()
    _process.arm(settings, is_strict=True)
    try:
        execute_shown(program)
    except BaseException as error:
        if why is not None and _why.is_out_of_memory(error):
            _why.write(error, why)
        raise
    return 0


def execute_shown(program: list[str]) -> None:
    """Runs a program, and shows what ends it as Python would."""
    try:
        execute(program)
    except SystemExit:
        raise
    except BaseException as error:
        _show(error)
        raise


def _refuse_no_folder(option: str, folder: str | None) -> None:
    """Raises if what an option names cannot become a folder."""
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise GirihError(f"name a folder: {option} {folder} is none")


def _say_what_is_done() -> None:
    """Has Girih's log written on standard error, whatever the program does with logging."""
    log = logging.getLogger("girih")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("girih: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False


def refuse_what_heaps_refuse(settings: _settings.Settings) -> None:
    """Raises now what would come out of `import torch` otherwise, hours later perhaps."""
    import json

    heaps = json.loads(settings.for_heaps(key="", torch=""))
    is_written = settings.conf or any(name in heaps for name in settings.options)
    if settings.mode == "off" or not is_written:
        return
    # The release of torch is not known before it is imported, nor the plan that is kept.
    heaps |= {"torch": None, "plan": settings.plan or "{device}"}
    try:
        from girih import _native
    except ImportError:
        return  # the moment in which it is needed says so
    try:
        _native.check_settings(json.dumps(heaps))
    except ValueError as error:
        raise GirihError(str(error)) from error


def refuse_unwritable(option: str, report: str | None) -> None:
    """Raises if what an option names could not be written at the end."""
    if report is None:
        return
    path = Path(report)
    if path.is_dir():
        raise GirihError(f"name a file: {option} {report} is a folder")
    if not path.parent.is_dir():
        raise GirihError(
            f"make the folder {path.parent}, or name another file: {option} {report} is in none"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise GirihError(f"name another file: {option} {report} cannot be written to")


def _show(error: BaseException) -> None:
    """Shows what ended the program as Python would, without the frames of this module.

    Whoever raises the error again has Python end as ever: status, signal and `python -i` are the
    same. Only its own report of the error is left out, for it would be the second.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
        frames = frames.tb_next
    if frames is None and not isinstance(error, SyntaxError):
        # It is an error of our own.
        return
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    sys.excepthook = lambda *_: None


# What is between Python and the program: this file, and what reads the program for it.
_OURS = (
    __file__,
    runpy.__file__,
    "<frozen runpy>",
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)


# Options with a value, and those without; both before the program.
_VALUED = (
    "--mode",
    "--plan",
    "--plan-dir",
    "--trace",
    "--conf",
    "--report",
    "--gpu-budget",
    "--host-budget",
    "--option",
)
_PLAIN = (
    "--why",
    "--long-context",
    "--mlp-in-tiles",
    "--modules",
    "--no-hooks",
    "--no-plan-dir",
    "--quiet",
    "-q",
    "--verbose",
    "-v",
    "--help",
    "-h",
)

# With a value after "=", or without.
_EITHER = ("--why", "--long-context", "--mlp-in-tiles")


def split(
    words: list[str], *, valued: tuple[str, ...] = _VALUED, plain: tuple[str, ...] = _PLAIN
) -> tuple[list[str], list[str]]:
    """Divides the words into Girih's and the program's, which begin with the first of its own.

    The program's words are its own: an option of Girih's name behind the program is the program's.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if word in valued:
            index += 2
        elif word in plain or word.partition("=")[0] in (*valued, *_EITHER):
            index += 1
        elif word.startswith("-") and word[:2] not in ("-m", "-c"):
            # The parser refuses it, and says what there is.
            return words, []
        else:
            break
    return words[:index], words[index:]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m girih run",
        usage=_USAGE,
        description="Runs a program on Girih, unchanged.",
        epilog="modes:\n" + "\n".join(f"  {name:<11} {text}" for name, text in MODES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--mode", choices=list(MODES), metavar="M", help="how memory is given (auto); see below")
    add("--plan", metavar="FILE", help="the plan file of the mode plan")
    add("--plan-dir", metavar="DIR", help="where auto keeps plans (the user's cache)")
    add("--no-plan-dir", action="store_true", help="auto keeps no plans and looks for none")
    add("--trace", metavar="FILE", help="writes the recording of the run to a trace file")
    add("--conf", metavar="TEXT", help="settings in the words of PYTORCH_CUDA_ALLOC_CONF")
    add("--report", metavar="FILE", help="writes what came of the run as JSON")
    add(
        "--why",
        nargs="?",
        const="girih-why.txt",
        metavar="=FILE",
        help="records the run, and writes why if it runs out of memory (girih-why.txt)",
    )
    add("--gpu-budget", metavar="SIZE", help="swaps what is above so much of each GPU (60GiB)")
    add("--host-budget", metavar="SIZE", help="swaps at most so much to the host (100GiB)")
    add(
        "--long-context",
        nargs="?",
        const=True,
        type=_parts,
        metavar="=ALPHA",
        help="computes again what layers save but for what fits, or but for ALPHA: a part of the "
        "tokens, 0 to 1, or products, or one of these for each layer, as 0,0.5,1",
    )
    add(
        "--mlp-in-tiles",
        nargs="?",
        const=True,
        type=int,
        metavar="=TOKENS",
        help="with --long-context: perceptrons of layers of which nothing is kept run over some "
        "tokens after others",
    )
    add("--modules", action="store_true", help="marks the passes of the model's first two levels")
    add("--no-hooks", action="store_true", help="sets no hooks in torch or in frameworks")
    add("--option", metavar="K=V", action="append", default=[], help="a further option; V is JSON")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", "-q", action="store_true", help="prints no line at the end")
    loudness.add_argument(
        "--verbose", "-v", action="store_true", help="says on standard error what Girih does"
    )
    return parser


def _parts(text: str) -> Any:
    """A part of the tokens, or `products`; or one of these for each layer."""
    try:
        parts = [word if word == "products" else float(word) for word in text.split(",")]
    except ValueError:
        parts = [-1.0]
    if not all(part == "products" or 0 <= float(part) <= 1 for part in parts):
        raise argparse.ArgumentTypeError(
            f"give a part, 0 to 1, or products, or one for each layer, as 0,0.5,1: not {text}"
        )
    return parts if len(parts) > 1 else parts[0]


def _settings_of(options: argparse.Namespace) -> _settings.Settings:
    further = further_options(options.option)
    for name in ("gpu_budget", "host_budget"):
        if (size := getattr(options, name)) is not None:
            further[name] = size
    if options.long_context is not None:
        further["long_context"] = options.long_context
    if options.mlp_in_tiles is not None:
        further["mlp_in_tiles"] = options.mlp_in_tiles
    if options.modules:
        further["modules"] = True
    if options.no_hooks:
        further["hooks"] = False
    # What is not said here, the environment may say.
    environ = os.environ
    return _settings.make(
        options.mode or environ.get("GIRIH_MODE") or "auto",
        plan=options.plan or environ.get("GIRIH_PLAN") or None,
        plan_dir=False if options.no_plan_dir else options.plan_dir or _environ_plan_dir(environ),
        conf=options.conf if options.conf is not None else environ.get("GIRIH_CONF"),
        trace=options.trace or environ.get("GIRIH_TRACE") or None,
        options=further,
    )


def further_options(texts: list[str]) -> dict[str, Any]:
    """What `--option` says."""
    further: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise GirihError(f"write name=value: --option {text} is not so")
        further[name] = _json_or_text(value)
    return further


def _environ_plan_dir(environ: Mapping[str, str]) -> str | bool | None:
    folder = environ.get("GIRIH_PLAN_DIR")
    return False if folder == "" else folder


def _json_or_text(value: str) -> Any:
    import json

    try:
        return json.loads(value)
    except ValueError:
        return value


def execute(program: list[str]) -> None:
    """Runs a program as `python` would with these words after it."""
    kind, rest = program[0], program[1:]
    if kind[:2] in ("-m", "-c"):
        # -mmodule is as good as -m module.
        operand, rest = (kind[2:], rest) if len(kind) > 2 else (rest[0] if rest else "", rest[1:])
        if not operand:
            raise SystemExit(f"girih: {kind} needs {'a module' if kind == '-m' else 'code'}")
        if kind.startswith("-m"):
            _execute_module(operand, rest)
        else:
            sys.argv = ["-c", *rest]
            _key.code = operand
            _set_first_path("")
            _execute_code(compile(operand, "<string>", "exec"), _new_main())
    else:
        _execute_script(kind, rest)


def _execute_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    # Python names the file by its absolute path everywhere but in sys.argv.
    path = str(Path(path).absolute())
    if not Path(path).is_file() or not _is_source(path):
        # A folder or an archive with a __main__ in it, compiled code, or a mistake.
        if not Path(path).exists():
            raise SystemExit(f"girih: can't open file '{path}'")
        _execute_folder(path)
        return
    _set_first_path(str(Path(path).resolve().parent))
    main = _new_main()
    main.__file__ = path
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__loader__ = loader
    _execute_code(loader.source_to_code(Path(path).read_bytes(), path), main)


def _execute_folder(path: str) -> None:
    """Runs a folder, an archive or compiled code: what Python looks for a `__main__` in."""
    if path.endswith(".pyc"):
        _set_first_path(str(Path(path).resolve().parent))
        runpy.run_path(path, run_name="__main__")
        return
    # Python puts it first even if it was told to be safe, for there the program is.
    if getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, path)
    else:
        _set_first_path(path)
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code("__main__") if loader is not None else None
    if spec is None or code is None:
        raise SystemExit(f"girih: can't find '__main__' module in '{path}'")
    main = _new_main()
    main.__file__ = spec.origin
    main.__loader__ = loader
    main.__package__ = ""
    main.__spec__ = spec
    _execute_code(code, main)


def _is_source(path: str) -> bool:
    import zipfile

    return not path.endswith(".pyc") and not zipfile.is_zipfile(path)


def _execute_module(name: str, arguments: list[str]) -> None:
    # The folder of `python -m` is the present one, and is there already as the first path.
    _set_first_path(str(Path.cwd()))
    sys.argv = ["-m", *arguments]
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise SystemExit(f"girih: no module named {name} that could be run")
    sys.argv[0] = spec.origin or name
    main = _new_main()
    main.__file__ = spec.origin
    main.__loader__ = loader
    main.__package__ = spec.parent
    main.__spec__ = spec
    _execute_code(code, main)


def _set_first_path(path: str) -> None:
    """Python puts the program's folder first, unless it was told to be safe (-P)."""
    if not getattr(sys.flags, "safe_path", False) and sys.path:
        sys.path[0] = path


def _new_main() -> types.ModuleType:
    """An empty `__main__` in the place of ours, to stay until the end of the process."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    # Who holds our module's functions must not see it vanish.
    _replaced.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    return main


_replaced: list[types.ModuleType] = []
MODES = _settings.MODES


def _execute_code(code: types.CodeType, main: types.ModuleType) -> None:
    exec(code, main.__dict__)
