"""What the tests share: a torch that is not there, and programs in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from girih._watch import Watch

# What the environment of the tests must not say.
for _name in [name for name in os.environ if name.startswith("GIRIH_")]:
    del os.environ[_name]

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests share, so that a shim is compiled once; apart from the user's."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def python(tmp_path: Path, cache: Path) -> Python:
    """Runs Python with these words, in a folder of its own."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"GIRIH_CACHE": str(cache)} | environ,
        )

    return run


@pytest.fixture
def beside(python: Python) -> Callable[..., tuple[Any, str]]:
    """Runs a program that imports what lies beside the tests.

    Gives what it prints as JSON in its last line, and what is on stderr.
    """

    def run(*words: str) -> tuple[Any, str]:
        here = str(Path(__file__).parent)
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        done = python(*words, PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


def start_on_terminal(*words: str | Path) -> tuple[int, int]:
    """Starts a program with a terminal of its own; gives its process and that terminal."""
    environ = dict(os.environ, TERM="xterm", COLUMNS="80", LINES="24")
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            # What runs in the background of a script ignores Ctrl-C, and so would its children;
            # and where one of the three is ignored (nohup), the command leaves all to the system.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.execve(words[0], [str(word) for word in words], environ)
        finally:
            # Nothing may go on here: it would be a second run of the tests.
            os._exit(127)
    return pid, terminal


class Marks(list[tuple[str, str]]):
    """The marks that were set: pairs of kind and name."""

    def __call__(self, kind: str, name: str) -> None:
        self.append((kind, name))

    def kinds(self) -> str:
        """Only the kinds, in order, in one text."""
        return " ".join(kind for kind, _ in self)


@pytest.fixture
def marks() -> Marks:
    return Marks()


@pytest.fixture
def watch(marks: Marks) -> Watch:
    return Watch(marks)


class FakeTorch(types.SimpleNamespace):
    """As much of torch as the hooks look at."""

    def __init__(self) -> None:
        fake = self

        class Module:
            def __init__(self, *children: Module, parameters: int = 0) -> None:
                self.training = True
                self._children = children
                self._parameters = parameters

            def children(self) -> tuple[Module, ...]:
                return self._children

            def parameters(self) -> list[object]:
                own = [object()] * self._parameters
                return own + [p for child in self._children for p in child.parameters()]

            def train(self, mode: bool = True) -> Module:
                self.training = mode
                for child in self.children():
                    child.train(mode)
                return self

            def eval(self) -> Module:
                return self.train(False)

        class Optimizer:
            def __init__(self, parameters: int = 10) -> None:
                self.param_groups = [{"params": [object()] * parameters}]

            def step(self, closure: Callable[[], None] | None = None) -> None:
                args = (self,) if closure is None else (self, closure)
                for hook in fake.pre_hooks:
                    hook(self, args, {})
                if closure is not None:
                    closure()
                for hook in fake.post_hooks:
                    hook(self, args, {})

        class GradScaler:
            overflows = False

            def step(self, optimizer: Optimizer) -> None:
                if not self.overflows:
                    optimizer.step()

        super().__init__(
            pre_hooks=[],
            post_hooks=[],
            is_compiling=False,
            optim_module=types.ModuleType("torch.optim.optimizer"),
            Optimizer=Optimizer,
            nn=types.SimpleNamespace(Module=Module),
            amp=types.SimpleNamespace(grad_scaler=types.SimpleNamespace(GradScaler=GradScaler)),
            autograd=types.SimpleNamespace(backward=self._backward),
            compiler=types.SimpleNamespace(is_compiling=lambda: fake.is_compiling),
        )
        optim: Any = self.optim_module
        optim.register_optimizer_step_pre_hook = self.pre_hooks.append
        optim.register_optimizer_step_post_hook = self.post_hooks.append

    def _backward(self, inner: Callable[[], None] | None = None) -> None:
        if inner is not None:
            inner()

    def backward(self, inner: Callable[[], None] | None = None) -> None:
        """What `Tensor.backward` does: it looks the function up."""
        self.autograd.backward(inner)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", fake.optim_module)
    return fake


@pytest.fixture
def one_thread(monkeypatch):
    """Threads cut a tensor at places that depend on its length, where vectors of a CPU end.

    The layers of these tests are narrow, and their products and sums worth keeping all the same.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr("girih._long.notes.DEPTH", 8)
    monkeypatch.setattr("girih._long.notes.TERMS", 8)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
