"""`python -m girih run`: programs see what Python itself would show them."""

import importlib.util
import json
import py_compile
import signal
import sys

import pytest

from girih import _run

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

SHOW = """
import json, sys
spec = __spec__.name if __spec__ else None
print(json.dumps([__name__, sys.argv, sys.path[0], spec, __package__, globals().get("__file__")]))
print(sys.modules["__main__"].__dict__ is globals())
"""


@pytest.mark.parametrize(
    ("words", "own", "program"),
    [
        ("train.py --mode x", "", "train.py --mode x"),
        ("--mode plan --plan f train.py", "--mode plan --plan f", "train.py"),
        ("--mode=auto -q -m pkg -q", "--mode=auto -q", "-m pkg -q"),
        ("--trace t -c code", "--trace t", "-c code"),
        ("-- --odd-name.py", "", "--odd-name.py"),
        ("-mpkg x", "", "-mpkg x"),
    ],
)
def test_words_before_the_program_are_ours_and_words_behind_it_are_not(words, own, program):
    assert _run.split(words.split()) == (own.split(), program.split())


@pytest.mark.parametrize("kind", ["script", "folder", "module", "package", "code", "joined"])
def test_a_program_sees_the_same_as_under_python(python, tmp_path, kind):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/show.py").write_text(SHOW)
    (tmp_path / "sub/__main__.py").write_text(SHOW)
    (tmp_path / "sub/__init__.py").touch()
    program = {
        "script": ["sub/show.py"],
        "folder": ["sub"],
        "module": ["-m", "sub.show"],
        "package": ["-m", "sub"],
        "code": ["-c", SHOW],
        "joined": ["-msub.show"],
    }[kind]
    words = [*program, "--mode", "-x", "last"]
    plain, under = python(*words), python("-m", "girih", "run", *words)
    assert plain.returncode == 0, plain.stderr
    assert under.returncode == 0, under.stderr
    assert under.stdout == plain.stdout


@pytest.mark.parametrize(
    ("code", "status"),
    [("import sys; sys.exit(7)", 7), ("raise ValueError('mine')", 1), ("", 0)],
)
def test_the_exit_status_is_the_programs(python, code, status):
    result = python("-m", "girih", "run", "-c", code or "pass")
    assert result.returncode == status
    assert ("mine" in result.stderr) == (status == 1)


def test_classes_of_the_program_can_be_pickled(python, tmp_path):
    (tmp_path / "program.py").write_text(
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)\n"
    )
    result = python("-m", "girih", "run", "program.py")
    assert result.stdout == "__main__\n", result.stderr


def test_a_program_may_spawn_processes(python, tmp_path):
    (tmp_path / "program.py").write_text(
        "import multiprocessing, sys\n"
        "def work(queue): queue.put('girih' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start(); print(queue.get(timeout=60)); process.join()\n"
    )
    result = python("-m", "girih", "run", "program.py")
    assert result.stdout == "True\n", result.stderr


def test_what_the_program_starts_gets_the_same_settings(python):
    code = (
        "import subprocess, sys\n"
        'show = \'import os, sys; print(os.environ["GIRIH_MODE"], "girih" in sys.modules)\'\n'
        "subprocess.run([sys.executable, '-c', show], check=True)\n"
    )
    result = python("-m", "girih", "run", "--mode", "native", "-c", code)
    assert result.stdout == "native True\n", result.stderr


def test_the_sitecustomize_of_the_user_is_still_run(python, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sitecustomize.py").write_text("import builtins; builtins.mine = 1\n")
    code = (
        "import os, subprocess, sys\n"
        "os.environ['PYTHONPATH'] += os.pathsep + 'mine'\n"
        "show = 'import sys; print(mine, \"girih\" in sys.modules)'\n"
        "subprocess.run([sys.executable, '-c', show], check=True)\n"
    )
    result = python("-m", "girih", "run", "-c", code)
    assert result.stdout == "1 True\n", result.stderr


def test_a_program_that_does_not_import_girih_is_not_touched_by_the_variable(python):
    result = python("-c", "import sys; print('girih' in sys.modules)", GIRIH_MODE="auto")
    assert result.stdout == "False\n"


def test_a_program_without_torch_never_loads_the_extension(python):
    code = "import sys; print('girih._native' in sys.modules, 'torch' in sys.modules)"
    result = python("-m", "girih", "run", "-c", code)
    assert result.stdout == "False False\n", result.stderr


RUN = ("-m", "girih", "run", "--quiet", "--no-plan-dir", "--option", 'sim={"capacity": 1073741824}')
# Asks for memory as the shim would: there is no GPU.
USE = """
import ctypes, os, signal, sys, time
import torch
from girih import _native


class Pool(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


heaps, address = ctypes.CDLL(_native.__file__), ctypes.c_void_p()
assert heaps.girih_init(1) == 0
size, stream = ctypes.c_uint64(1 << 20), ctypes.c_uint64(0)
assert heaps.girih_alloc(0, size, stream, Pool(0, 0), ctypes.byref(address)) == 0
"""


@needs_torch
def test_a_run_that_is_terminated_leaves_its_trace_and_report_and_dies_of_the_signal(
    python, tmp_path
):
    code = USE + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"
    result = python(*RUN, "--report", "r.json", "--trace", "t.girih", "-c", code)
    assert result.returncode == -signal.SIGTERM, result.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["devices"][0]["allocated"] == 1 << 20
    assert (tmp_path / "t.girih").stat().st_size > 0


@needs_torch
def test_a_program_that_handles_the_signal_itself_does_so(python, tmp_path):
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        + USE
        + "signal.raise_signal(15)\n"
    )
    result = python(*RUN, "--report", "r.json", "-c", code)
    assert result.returncode == 5, result.stderr
    assert (tmp_path / "r.json").is_file(), "it ends as it does otherwise"


@needs_torch
def test_a_run_that_leaves_nothing_does_not_touch_the_signal(python):
    code = USE + "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    result = python(*RUN, "-c", code)
    assert result.stdout == "True\n", result.stderr


@needs_torch
def test_a_forked_child_that_is_terminated_dies_and_leaves_the_files_to_its_parent(
    python, tmp_path
):
    code = USE + (
        "ready, say = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    # A signal that comes while Python is forking would be lost.\n"
        "    os.write(say, b'.'); time.sleep(60); os._exit(9)\n"
        "os.read(ready, 1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.path.exists('r.json'))\n"
    )
    result = python(*RUN, "--report", "r.json", "-c", code)
    assert result.stdout == f"{-signal.SIGTERM} False\n", result.stderr
    assert (tmp_path / "r.json").is_file()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "no program"),
        (["--mode", "atuo", "x.py"], "atuo"),
        (["--mode", "plan", "--no-plan-dir", "x.py"], "--plan"),
        (["--no-such", "x.py"], "--no-such"),
        (["--option", "x", "x.py"], "name=value"),
        (["--report", "nowhere/r.json", "x.py"], "nowhere, or name another file: -"),
        (["--report", ".", "x.py"], "name a file: --report "),
        (["--trace", "nowhere/t.girih", "x.py"], "nowhere, or name another file: -"),
        (["--why=nowhere/w.txt", "x.py"], "nowhere, or name another file: -"),
        (["--plan-dir", __file__, "x.py"], "name a folder: --plan-dir"),
    ],
)
def test_words_that_mean_nothing_are_refused(python, words, text):
    result = python("-m", "girih", "run", *words)
    assert result.returncode == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    ("words", "environ", "text"),
    [
        (["--conf", "max_spilt:3"], {}, "max_spilt"),
        (["--conf", "max_split_size_mb:many"], {}, "many"),
        (["--option", "recrod=false"], {}, "recrod"),
        (["--option", "gmlake_limit=4"], {}, "use the mode `gmlake`"),
        (["--option", "gmlake_limit=many"], {}, "expected u64"),
        ([], {"GIRIH_CONF": "max_spilt:3"}, "max_spilt"),
    ],
)
def test_what_the_heaps_would_refuse_is_refused_before_the_program_starts(
    python, words, environ, text
):
    pytest.importorskip("girih._native", reason="the extension is not built")
    result = python("-m", "girih", "run", *words, "-c", "print('has started')", **environ)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_a_report_that_can_no_longer_be_written_is_said_and_changes_no_status(python):
    code = "import shutil; shutil.rmtree('gone'); print('done')"
    assert python("-c", "import os; os.mkdir('gone')").returncode == 0
    result = python("-m", "girih", "run", "--report", "gone/r.json", "-c", code)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert "girih: the report is not written: " in result.stderr


def test_right_settings_let_the_program_start(python):
    words = ["--mode", "plan", "--conf", "max_split_size_mb:64", "--option", "record=false"]
    result = python("-m", "girih", "run", *words, "-c", "print('has started')")
    assert (result.returncode, result.stdout) == (0, "has started\n"), result.stderr


RAISES = """
def work():
    raise {error}

work()
"""


@pytest.mark.parametrize("kind", ["script", "module", "code", "compiled"])
@pytest.mark.parametrize("error", ["ValueError('mine')", "KeyboardInterrupt"])
def test_a_traceback_shows_the_program_alone(python, tmp_path, kind, error):
    (tmp_path / "fails.py").write_text(RAISES.format(error=error))
    py_compile.compile(str(tmp_path / "fails.py"), cfile=str(tmp_path / "compiled.pyc"))
    program = {
        "script": ["fails.py"],
        "module": ["-m", "fails"],
        "code": ["-c", RAISES.format(error=error)],
        "compiled": ["compiled.pyc"],
    }[kind]
    plain, under = python(*program), python("-m", "girih", "run", *program)
    assert under.returncode == plain.returncode, under.stderr
    expected = plain.stderr.splitlines()
    if kind == "module":
        # Python shows the frames of its own runpy here.
        expected = [line for line in expected if "runpy" not in line]
        assert [line for line in under.stderr.splitlines() if "fails.py" in line] == [
            line for line in expected if "fails.py" in line
        ]
    else:
        assert under.stderr.splitlines() == expected
    assert "girih" not in under.stderr.replace(str(tmp_path), "")


def test_a_program_that_cannot_be_parsed_is_shown_as_by_python(python, tmp_path):
    (tmp_path / "broken.py").write_text("def work(:\n")
    plain, under = python("broken.py"), python("-m", "girih", "run", "broken.py")
    assert (under.returncode, under.stderr) == (plain.returncode, plain.stderr)


def test_the_hook_of_the_program_sees_its_error_once_and_without_our_frames(python):
    code = (
        "import sys, traceback\n"
        "def hook(kind, error, frames):\n"
        "    print(kind.__name__, len(traceback.extract_tb(frames)))\n"
        "sys.excepthook = hook\n"
        "raise ValueError\n"
    )
    result = python("-m", "girih", "run", "-c", code)
    assert (result.returncode, result.stdout, result.stderr) == (1, "ValueError 1\n", "")


@pytest.mark.parametrize("words", [["nowhere.py"], ["-m", "no_such_module_anywhere"]])
def test_a_program_that_does_not_exist_is_named(python, words):
    result = python("-m", "girih", "run", *words)
    assert result.returncode == 1
    assert words[-1] in result.stderr


def test_the_command_says_what_it_can(python):
    assert "doctor" in python("-m", "girih", "--help").stdout
    result = python("-m", "girih")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("girih: no command\nusage: ")
    assert "phantom" in python("-m", "girih", "run", "--help").stdout


def test_the_doctor_says_what_is_missing_and_exits_by_it(python):
    pytest.importorskip("girih._native", reason="the extension is not built")
    result = python("-m", "girih", "doctor", "--json")
    found = json.loads(result.stdout)
    bad = [finding for finding in found["findings"] if finding["verdict"] == "bad"]
    assert found["works"] == (not bad)
    assert result.returncode == (1 if bad else 0)
    assert sys.platform.startswith("linux") <= any(
        finding["what"] == "girih" for finding in found["findings"]
    )
