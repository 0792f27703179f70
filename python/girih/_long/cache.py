"""Keys and values that a model of Hugging Face keeps for generation though nobody asked for them.

Its configuration has it keep them in every pass, also in those that learn, where each layer is
given a cache that it writes into and so cannot run twice. Where a pass that learns says nothing of
a cache, its layers are given one that does to keys and values what an empty one does, to the bit
(it copies them, by which kernels after it may round another way), and holds nothing. What the
output has in its place is an error to whoever reads it, and not a cache without tokens.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from girih._errors import GirihError
from girih._long import placed

CACHES = ("past_key_values", "cache")
"""Under which names caches are given, and come back."""
KNOWN = ("DynamicLayer", "DynamicSlidingWindowLayer")
"""Of a layer's part of a cache: those that do nothing but put keys and values behind others."""


class Passing:
    """A cache that passes on what it is given: a layer may run twice with it."""


class NoCacheError(GirihError, AttributeError):
    """A cache is read that was not kept."""


class NoCache:
    """What an output has in the place of a cache."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()

    def __getitem__(self, _: Any) -> Any:
        """As of keys and values of a layer."""
        raise self._error()

    def __iter__(self) -> Iterator[Any]:
        """As over the layers."""
        raise self._error()

    def __len__(self) -> int:
        raise self._error()

    def __bool__(self) -> bool:
        """True as a cache with tokens."""
        return True

    def __repr__(self) -> str:
        return "no keys and values: pass use_cache=True"

    @staticmethod
    def _error() -> NoCacheError:
        return NoCacheError(
            "pass use_cache=True to have keys and values of a pass that learns: its layers are "
            "split by tokens (girih.long_context), and keep none that are not asked for"
        )


class Uncached:
    """The hooks that have passes of a model that learn go without a cache that holds something."""

    def __init__(self, model: Any) -> None:
        self._hooks: list[tuple[Any, Any]] = []
        """Each module, and what takes a hook of it away."""
        for module in model.modules():
            if not _may_generate(module):
                continue
            self._watch(module)
            # Where the call of this one has begun, that of one within it may be seen in time.
            if not getattr(module.config, "is_encoder_decoder", False):
                for inner in module.modules():
                    is_layer = isinstance(vars(inner).get("forward"), placed.Forward)
                    if inner is not module and not is_layer and "use_cache" in _parameters(inner):
                        self._watch(inner)
            return

    def remove(self) -> None:
        """Takes them away."""
        for module, hook in self._hooks:
            placed.of(module).unhook(hook)

    def _watch(self, module: Any) -> None:
        names = _parameters(module)
        under = next((name for name in CACHES if name in names), None)
        if under is None:
            return

        def before(module: Any, args: Any, kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False)) | kwargs
            if not _is_silent(module, given):
                return None
            make = _makers()
            cache = None if make is None else make(module.config)
            place = names.index(under)
            if cache is None:
                return None
            if place < len(args):
                return (*args[:place], cache, *args[place + 1 :]), kwargs
            return args, kwargs | {under: cache}

        def after(_module: Any, _args: Any, output: Any) -> Any:
            for name in CACHES:
                if isinstance(getattr(output, name, None), Passing):
                    # Also in the place that its fields have in their order.
                    output[name] = NoCache()

        hooks = [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after),
        ]
        placed.of(module).hook(*hooks)
        self._hooks += [(module, hook) for hook in hooks]


def _is_silent(module: Any, given: dict[str, Any]) -> bool:
    """True if the pass learns, would keep a cache, and does not say that it wants one."""
    is_learning = module.training and torch.is_grad_enabled()
    if not is_learning or torch.compiler.is_compiling():
        return False
    config = getattr(module, "config", None)
    would_keep = getattr(config, "use_cache", False) and getattr(config, "return_dict", True)
    is_said = any(given.get(name) is not None for name in ("use_cache", *CACHES))
    return bool(would_keep) and not is_said and given.get("return_dict") is not False


def _may_generate(module: Any) -> bool:
    can = getattr(type(module), "can_generate", None)
    return callable(can) and bool(module.can_generate()) and "use_cache" in _parameters(module)


def _parameters(module: Any) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


class _Forgets(dict[int, bool]):
    """What an encoder gave is not there for a layer that runs again."""

    def __setitem__(self, key: int, value: bool) -> None:
        """Nothing."""


@functools.cache
def _makers() -> Callable[[Any], Any] | None:
    """Makes a cache that holds nothing, for a configuration; None where the library has others."""
    try:
        # Whatever release it is: none is named as its types are.
        library: Any = importlib.import_module("transformers.cache_utils")
    except ImportError:
        return None

    class PassingCache(library.DynamicCache, Passing):  # type: ignore[misc]
        """As an empty one, after each layer as before."""

        def update(self, keys: Any, values: Any, layer_idx: int, *args: Any, **more: Any) -> Any:
            """What the part of one layer makes of them."""
            kind = self.layer_class_to_replicate
            part = copy.copy(self.layers[layer_idx]) if layer_idx < len(self.layers) else kind()
            return part.update(keys, values, *args, **more)

        @property
        def is_known(self) -> bool:
            """True if it is made of parts of which it is known what they do."""
            parts = [*map(type, self.layers), self.layer_class_to_replicate]
            return all(part is None or part.__name__ in KNOWN for part in parts)

    class PassingPair(library.EncoderDecoderCache, Passing):  # type: ignore[misc]
        """Of a decoder and of what it reads of its encoder."""

    def make(config: Any) -> Any:
        try:
            one = PassingCache(config=config)
            if not one.is_known:
                return None
            if not getattr(config, "is_encoder_decoder", False):
                return one
            pair = PassingPair(one, PassingCache(config=config))
            pair.is_updated = _Forgets()
            return pair
        except (TypeError, AttributeError):
            # Of another release.
            return None

    return make
