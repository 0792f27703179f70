"""States of optimizers, which may go to the host between steps: see `python/src/states.rs`.

After a step of an optimizer its dictionary of states is taken out of it, if nobody else has it.
Whoever asks for `optimizer.state` then is answered by `_Door`, which puts it back first, with all
that had gone:

    optimizer.state      in the instance's own dictionary: found there, as ever
                         not there: the class is asked, whose `state` is the door

So an optimizer whose states stay is as it was, and to reach its states costs nothing. The next step
asks too, by a hook: there the stream waits for what is late, not the host.

What is taken out belongs to `_Sealed`, which the instance has: it dies with the optimizer.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import weakref
from typing import Any

from girih._watch import wrap

log = logging.getLogger("girih")

# What the instance has instead of `state`.
_KEY = "_girih_states"
# By which an optimizer may be copied or pickled. One that has ways of its own may look into its
# dictionary, where nothing of the sort is expected.
_WAYS = ("__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__")
_OWN_WAYS = ("__deepcopy__", "__copy__")


class _Sealed:
    """The states of an optimizer between two steps."""

    __slots__ = ("__weakref__", "records", "state")

    def __init__(self) -> None:
        self.records: Any = None
        self.state: Any = None

    def __del__(self) -> None:
        # Before the tensors go: a copy may still read or write their bytes.
        if self.records is not None:
            self.records.give_up()

    def __reduce__(self) -> Any:
        raise TypeError("take optimizer.state first: its states may be on the host")


class _Door:
    """What the class of optimizers has as `state`: for those that have none of their own."""

    def __get__(self, optimizer: Any, owner: Any = None) -> Any:
        sealed = None if optimizer is None else vars(optimizer).get(_KEY)
        if sealed is None:
            name = getattr(owner, "__name__", "Optimizer")
            text = f"type object '{name}'" if optimizer is None else f"'{name}' object"
            raise AttributeError(f"{text} has no attribute 'state'")
        return _open(vars(optimizer), sealed, is_step=False)


def _open(instance: dict[str, Any], sealed: _Sealed, *, is_step: bool) -> Any:
    """Brings all of an optimizer's states back, and its dictionary with them. Gives that.

    Out of memory leaves everything as it was.
    """
    sealed.records.bring(is_step)
    state = sealed.state
    if instance.get(_KEY) is sealed:
        instance.setdefault("state", state)
        del instance[_KEY]
    return state


class States:
    """Offers the states of every optimizer that steps."""

    def __init__(self, torch: Any) -> None:
        self._is_compiling = torch.compiler.is_compiling
        self._class = torch.optim.Optimizer
        self._is_set = False
        # Whether optimizers of a class may be without their dictionary.
        self._may: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()

    def before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """An optimizer is about to step."""
        if self._is_compiling():
            return
        instance = vars(optimizer)
        sealed = instance.get(_KEY)
        if sealed is None:
            return
        if "state" in instance:
            # The program has given it another.
            del instance[_KEY]
        else:
            _open(instance, sealed, is_step=True)

    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """An optimizer has stepped."""
        if self._is_compiling():
            return
        from girih import _native

        if not _native.wants_states():
            return
        try:
            instance = vars(optimizer)
            if "state" in instance and _KEY not in instance and self._may_be_without(optimizer):
                _native.seal(instance, _KEY, _Sealed(), _sharded())
        except Exception:
            # They stay where they are, in a torch that is not as expected too.
            log.debug("states of %s stay", type(optimizer).__name__, exc_info=True)

    def _may_be_without(self, optimizer: Any) -> bool:
        # Its steps are about to be captured in a graph, which keeps addresses.
        if any(group.get("capturable") for group in optimizer.param_groups):
            return False
        kind = type(optimizer)
        if (found := self._may.get(kind)) is None:
            self._set_door()
            found = self._may[kind] = (
                isinstance(inspect.getattr_static(kind, "state", None), _Door)
                and all(getattr(kind, way) is getattr(self._class, way) for way in _WAYS)
                and not any(hasattr(kind, way) for way in _OWN_WAYS)
            )
        return found

    def _set_door(self) -> None:
        if self._is_set:
            return
        self._is_set = True
        if "state" not in vars(self._class):
            self._class.state = _Door()
        wrap(self._class, "__setstate__", before=_other_states)


def _other_states(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """An optimizer is given other states, which a checkpoint has: the old ones are not needed."""
    if len(args) > 1 and "state" in args[1]:
        vars(args[0]).pop(_KEY, None)


def _sharded() -> Any:
    """The class of tensors of which each process has a part, if the program has such."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


def install(torch: Any) -> States | None:
    """Has states offered from now on. Behind the hooks that mark steps: a step ends before."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Without its one lock Python does not tell who has an object.
        return None
    states = States(torch)
    # torch.optim hides this module behind the class of nearly its name.
    module = importlib.import_module("torch.optim.optimizer")
    module.register_optimizer_step_pre_hook(states.before)
    module.register_optimizer_step_post_hook(states.after)
    return states
