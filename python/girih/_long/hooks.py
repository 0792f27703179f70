"""Hooks of a program on modules within a layer: they run once, and a replay goes past them.

What a hook gave is kept, as of a module that must not run twice. A hook may hold on to what it was
shown, so that a pass of a layer that has any is never begun anew: it holds all that it saves until
it has ended. Hooks of torch itself (weights that are made of others, sharding) are part of what a
module computes, and run in a replay, too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

TABLES = ("_forward_pre_hooks", "_forward_hooks")
OURS = {"torch", "girih"}

Hook = Callable[..., Any]


def _tables(module: Any) -> Iterator[tuple[str, dict[int, Hook]]]:
    """Of the modules within one, and of all modules there are."""
    for name, inner in module.named_modules():
        if name:
            for table in TABLES:
                if hooks := inner.__dict__[table]:
                    yield f"{table[1:-1]} of {name}", hooks
    every = torch.nn.modules.module
    for table in ("_global_forward_pre_hooks", "_global_forward_hooks"):
        if hooks := getattr(every, table):
            yield table[1:-1], hooks


def _is_the_programs(hook: Hook) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    name = getattr(hook, "__module__", None) or type(hook).__module__
    return name.partition(".")[0] not in OURS


def are_there(module: Any) -> bool:
    """Whether a program has any that would run again."""
    return any(_is_the_programs(it) for _, hooks in _tables(module) for it in hooks.values())


@contextlib.contextmanager
def replaced(module: Any, by: Callable[[str, Hook], Hook]) -> Iterator[None]:
    """Within, others run in place of a program's hooks: `by` makes one of a name and a hook.

    They stay in the tables where they are, so that one may take itself out of there.
    """
    done: list[tuple[dict[int, Hook], int, Hook, Hook]] = []
    for name, hooks in _tables(module):
        for key, hook in list(hooks.items()):
            if _is_the_programs(hook):
                other = by(f"{name} ({key})", hook)
                hooks[key] = other
                done.append((hooks, key, hook, other))
    try:
        yield
    finally:
        for hooks, key, hook, other in done:
            if hooks.get(key) is other:
                hooks[key] = hook
