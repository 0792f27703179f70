"""Communication within a layer: it happens once, and a replay is answered with what it gave.

Ranks that split their layers in other ways than each other still do the same communication, in the
same order: that of the model as it is. So none is ever done in a replay.

- An operator that communicates is answered like attention. What it writes into (`received`) is
  written again.
- An `autograd.Function` in which something communicates is answered whole: a ring of attention is
  many operators, of which autograd keeps nothing but what the function saves. What it saves of what
  it was given is computed again with that.

Either way it must be of what the layer was given (`Origins`). What gathers weights, as sharding
does in hooks of modules, is of something else, and is left to those who do it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from girih._long.layout import PLAIN
from girih._long.trace import start_of, tensors, written

IN_PLACE = "c10d"
"""Operators that write into what they are given, which their schemas do not say."""
FUNCTIONAL = ("_c10d_functional", "c10d_functional", "_dtensor")
SPACES = (IN_PLACE, *FUNCTIONAL, "symm_mem")
"""All that communicates. Memory that other ranks write into (`symm_mem`) is not answered."""
SENDS = {"c10d::send", "c10d::barrier", "c10d::monitored_barrier_"}
"""They write into nothing."""
RECEIVES = {"c10d::recv_", "c10d::recv_any_source_"}
"""They read nothing: what comes is of what others were given."""
PASSES = {
    "_c10d_functional::wait_tensor",
    "c10d_functional::wait_tensor",
    "_c10d_functional::_wrap_tensor_autograd",
}
"""They give what they are given."""
WRAPPERS = ("DTensor", "AsyncCollectiveTensor")
"""Classes of tensors that hold a plain one, and do all they do by operators on that."""

Apply = Callable[[str, Callable[[], Any], Any], Any]
"""Is given the name of an `autograd.Function`, what applies it, and what it is given."""


def is_there() -> bool:
    """Whether this process is one of several that communicate."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def is_wrapper(kind: type) -> bool:
    """Whether it is one of `WRAPPERS`."""
    return kind.__name__ in WRAPPERS and kind.__module__.startswith("torch.distributed")


def is_within_shapes() -> bool:
    """Whether operators are run for the shapes that they give alone, as `DTensor` does."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def unwrapped(tensor: Any) -> tuple[Any, Any]:
    """The plain tensor that a wrapper holds, and what makes a wrapper of another one like it."""
    if not is_wrapper(type(tensor)):
        return tensor, None
    if is_on_its_way(tensor):
        return tensor.trigger_wait(), None
    shape, stride = tensor.shape, tensor.stride()
    kind, mesh, placements = type(tensor), tensor.device_mesh, tensor.placements
    local = unwrapped(tensor._local_tensor)[0]

    def wrap(rows: Any) -> Any:
        with torch.no_grad():
            return kind.from_local(
                rows, mesh, placements, run_check=False, shape=shape, stride=stride
            )

    return local, wrap


def is_on_its_way(leaf: Any) -> bool:
    """Whether it is a tensor that is waited for when it is first used."""
    return type(leaf).__name__ == "AsyncCollectiveTensor" and is_wrapper(type(leaf))


class Waited(torch.autograd.Function):  # type: ignore[misc]
    """A tensor that has come, with the history of the one that was on its way."""

    @staticmethod
    def forward(_ctx: Any, tensor: Any) -> Any:
        """Waits for it."""
        return tensor.trigger_wait()

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """As it is."""
        return gradient


def waited(leaf: Any) -> Any:
    """A tensor that is on its way, when it has come; anything else as it is."""
    return Waited.apply(leaf) if is_on_its_way(leaf) else leaf


def space_of(name: str) -> str:
    """Of an operator's name."""
    return name.partition("::")[0]


def received(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an operator that communicates writes into."""
    if name in SENDS:
        return []
    if space_of(name) == IN_PLACE:
        return tensors(args[0])
    return written(func, args, kwargs)


def returned(func: Any, args: tuple[Any, ...], into: list[Any]) -> Any:
    """What one that writes gives, where it does not run: what it wrote into, and no work left."""
    types = [str(it.type) for it in func._schema.returns]
    if space_of(func.name()) != IN_PLACE:
        return into[0] if types == ["Tensor"] else into
    done = torch._C._distributed_c10d.FakeWork().boxed()
    gives = [done if it.endswith("c10d.Work") else args[0] for it in types]
    return gives[0] if len(gives) == 1 else tuple(gives)


def shapes_of(name: str, args: tuple[Any, ...], note: Any) -> list[tuple[int, ...]]:
    """Of what a functional operator would give of these arguments, by what it gave of others.

    Ranks are in the first dimension, if anywhere: that alone may be another than what was sent.
    """
    found = []
    for tensor, sent, packed in zip(tensors(args[:1]), note.given, note.outputs, strict=True):
        first, rest = tensor.shape[0] if tensor.ndim else 1, tuple(tensor.shape[1:])
        gave = tuple(packed.like.size)
        if name.endswith("::all_to_all_single"):
            found.append((sum(args[1]) if args[1] else first, *rest))
        elif gave == sent:
            found.append(tuple(tensor.shape))
        else:
            found.append((first * gave[0] // max(1, sent[0]), *rest))
    return found


class Origins:
    """What of a pass comes from what the layer was given, while the pass runs.

    By the storages that there are: an operator that reads one of those makes others.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        self.starts = _starts(given)
        self.function: Function | None = None
        """The outermost that runs."""
        self.functions = 0
        """Those that have begun, outermost ones alone."""
        self.is_heard = False
        """Something has communicated."""

    def note(self, given: Any, gave: Any, changed: Iterable[Any]) -> None:
        """An operator has run."""
        sources, wrote = _starts(tensors(given)), _starts(changed)
        own = _starts(tensors(gave)) - sources
        if sources & self.starts:
            self.starts |= own | wrote
        else:
            # Where such bytes were, others may be by now.
            self.starts -= own
        if self.function is not None:
            self.function.made |= own
            self.function.changed |= wrote - self.function.made

    def ended(self) -> Origins:
        """Nothing is looked for any more, and where it was is of no use."""
        self.starts.clear()
        return self

    def is_of_the_input(self, name: str, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether an operator sends what comes from there; of one that only receives, yes."""
        if space_of(name) == "symm_mem":
            return False
        if name in RECEIVES:
            return True
        reads = args[1:] if space_of(name) == IN_PLACE and tensors(args[1:]) else args
        return bool(_starts(tensors((reads, kwargs))) & self.starts)


@dataclasses.dataclass
class Function:
    """An `autograd.Function` that runs."""

    communicates: bool = False
    is_sound: bool = True
    """All that it sends comes from the layer's input."""
    made: set[int] = dataclasses.field(default_factory=set)
    """Storages that are its own."""
    changed: set[int] = dataclasses.field(default_factory=set)
    """Others that it wrote into."""


def _starts(them: Iterable[Any]) -> set[int]:
    return {start_of(it) for it in them if type(it) in PLAIN and it.numel() > 0}


# ---- functions of autograd, which no mode of dispatch tells of

_lock = threading.Lock()
_here = threading.local()
_users = 0
_FUNCTION: Any = torch.autograd.Function
# In torch 2.11 `Function.apply` is of Python, and calls that of the class below: what is put there
# hears of it too where a program has noted `apply` as a function of its own. In 2.15 it is of C.
_HAS_BELOW = isinstance(vars(_FUNCTION).get("apply"), classmethod)
_OWNER: Any = (
    getattr(torch.autograd.function, "_SingleLevelFunction", None) if _HAS_BELOW else _FUNCTION
)
"""The class whose `apply` is heard of. Without one (another torch) each operator of a function is
answered by itself."""
_OWN: Any = None if _OWNER is None else vars(_OWNER).get("apply")
"""What it has as `apply` itself, instead of by inheritance."""


@contextlib.contextmanager
def watching(handler: Apply) -> Iterator[None]:
    """Has every `autograd.Function` that is applied on this thread go through `handler`."""
    handlers = _here.__dict__.setdefault("handlers", [])
    _install(1)
    handlers.append(handler)
    try:
        yield
    finally:
        handlers.pop()
        _install(-1)


def _install(users: int) -> None:
    global _users
    with _lock:
        _users += users
        if _OWNER is None:
            return
        if _users == 1 and users == 1:
            _OWNER.apply = classmethod(_apply)
        elif _users == 0 and _OWN is None:
            del _OWNER.apply
        elif _users == 0:
            _OWNER.apply = _OWN


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    apply = super(_OWNER, cls).apply if _OWN is None else _OWN.__get__(None, cls)
    run = functools.partial(apply, *args, **kwargs)
    handlers = getattr(_here, "handlers", None)
    if not handlers or getattr(cls, "is_ours", False):
        return run()
    given = tree_leaves((args, kwargs))
    if any(is_wrapper(type(it)) for it in given):
        # What it does with the plain ones is answered by itself.
        return run()
    return handlers[-1](cls.__qualname__, run, given)
