"""What `girih.long_context` does."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from girih import _process
from girih._errors import GirihError
from girih._long.cache import Uncached
from girih._long.choose import Choosing, OnGpu, host_memory
from girih._long.find import layers_of
from girih._long.layer import Known, Layer
from girih._long.loss import Loss
from girih._long.part import Alpha, is_alpha
from girih._long.share import Filling, Fixed, Share

# By the model. It dies with the model, though it knows parts of it: its layers hold it.
_contexts: weakref.WeakKeyDictionary[Any, weakref.ref[LongContext]] = weakref.WeakKeyDictionary()


class LongContext:
    """The layers of one model that are split by tokens."""

    def __init__(
        self, layers: list[Layer], share: Share, loss: Loss | None, uncached: Uncached
    ) -> None:
        self.layers = layers
        for layer in layers:
            layer.context = self
        self.uncached = uncached
        self.share = share
        self.loss = loss

    def remove(self) -> None:
        """Gives every layer its own forward back. What was saved before is used as it was saved."""
        self.uncached.remove()
        if self.loss is not None:
            self.loss.remove()
        for layer in reversed(self.layers):
            layer.remove()
        self.layers = []

    def report(self) -> dict[str, Any]:
        """What was done. For each layer: tokens, those kept, bytes saved and kept, and why not."""
        reason = "not asked for" if self.loss is None else self.loss.reason
        found = self.share.report() if isinstance(self.share, Choosing) else {}
        return {
            "found": found,
            "loss": {
                "in_tiles": self.loss is not None and bool(self.loss.functions),
                "fused": self.loss is not None and self.loss.is_fused,
                "reason": reason,
            },
            "layers": [
                {
                    "name": layer.name,
                    "kept_whole": sorted(layer.known.opaque | layer.known.mixing),
                    "not_in_tiles": {
                        key[0]: it for key, it in layer.known.tiled.items() if isinstance(it, str)
                    },
                    **vars(layer.seen),
                }
                for layer in self.layers
            ],
        }


def apply(
    model: Any,
    *,
    alpha: Alpha | Sequence[Alpha] | None = None,
    gpu_budget: int | None = None,
    host_budget: int | None = None,
    least_tokens: int = 0,
    layers: str | None = None,
    token_dim: int = 1,
    loss_in_tiles: bool | str = True,
    mlp_in_tiles: bool | int = False,
) -> LongContext:
    """Puts the split under a model's layers; of a model that has it, anew.

    Raises:
        GirihError: if an argument is wrong, or the model has no layers.
    """
    if loss_in_tiles not in (True, False, "fused"):
        raise GirihError(f'give loss_in_tiles as True, False or "fused": not {loss_in_tiles}')
    tile = _tile(mlp_in_tiles)
    found = layers_of(model, layers)
    for name, module in found:
        if getattr(module, "gradient_checkpointing", False):
            raise GirihError(
                "turn gradient checkpointing off (model.gradient_checkpointing_disable()): "
                f"{name} is computed again whole, and nothing of it would be left to split"
            )
    share = _share(alpha, gpu_budget, host_budget, len(found), least_tokens)
    remove(model)
    known: dict[type, Known] = {}
    made = [
        Layer(
            module,
            name,
            index,
            share=share,
            token_dim=token_dim,
            known=known.setdefault(type(module), Known()),
            tile=tile,
        )
        for index, (name, module) in enumerate(found)
    ]
    loss = Loss(model, is_fused=loss_in_tiles == "fused") if loss_in_tiles else None
    context = LongContext(made, share, loss, Uncached(model))
    _contexts[model] = weakref.ref(context)
    return context


def _tile(mlp_in_tiles: bool | int) -> int | None:
    """How many tokens a tile has, 0 for as many as are good; None if there are to be none."""
    if isinstance(mlp_in_tiles, bool):
        return 0 if mlp_in_tiles else None
    if mlp_in_tiles < 1:
        raise GirihError(
            f"give mlp_in_tiles as True, False or tokens of a tile: not {mlp_in_tiles}"
        )
    return int(mlp_in_tiles)


def remove(model: Any) -> None:
    """Takes it away again, if it is there."""
    known = of(model)
    if known is not None:
        del _contexts[model]
        known.remove()


def of(model: Any) -> LongContext | None:
    """What was put under a model."""
    found = _contexts.get(model)
    return None if found is None else found()


def reports() -> list[dict[str, Any]]:
    """Of every model of this process that has it."""
    known = [context() for context in list(_contexts.values())]
    return [context.report() for context in known if context is not None]


def _share(
    alpha: Alpha | Sequence[Alpha] | None,
    gpu_budget: int | None,
    host_budget: int | None,
    layers: int,
    least_tokens: int,
) -> Share:
    if alpha is None and gpu_budget is None and (budgets := swapping()):
        most = budgets.get("host_budget") or host_memory()
        return Choosing(
            layers,
            least_tokens,
            most if host_budget is None else min(host_budget, most),
            steps=steps_from_now(),
            now=OnGpu,
            is_settled=has_settled,
        )
    if host_budget is not None:
        raise GirihError(
            "start the program by `python -m girih run --gpu-budget SIZE`, and leave alpha and "
            "gpu_budget out here: host_budget is for layers that go to the host, as swapping has it"
        )
    if alpha is None:
        if not torch.cuda.is_available():
            raise GirihError("give alpha: there is no GPU whose memory could be filled")
        budget = (
            gpu_budget or torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        )
        return Filling(
            budget,
            layers,
            least_tokens,
            peak=torch.cuda.max_memory_allocated,
            steps=steps_from_now(),
        )
    if gpu_budget is not None:
        raise GirihError("give alpha or gpu_budget, not both: a budget finds its own alpha")
    parts = [alpha] if isinstance(alpha, (int, float, str)) else list(alpha)
    if not all(is_alpha(part) for part in parts):
        raise GirihError(
            'give alpha as a part, 0 (nothing is kept) to 1 (all is), or as "products": not '
            f"{alpha}"
        )
    if not isinstance(alpha, (int, float, str)) and len(parts) != layers:
        raise GirihError(
            f"give alpha for each of the {layers} layers, or one for all: not {len(parts)}"
        )
    return Fixed(alpha, least_tokens)


def swapping() -> dict[str, Any]:
    """The budgets within which Girih swaps in this process; empty if it does not."""
    process = _process.enabled()
    if process is None or process.settings.mode == "off":
        return {}
    options = process.settings.options
    return dict(options) if "gpu_budget" in options else {}


def has_settled() -> bool:
    """Whether swapping has tried its plans for the steps as they are now, on all devices."""
    devices = _process.report().get("devices", [])
    return all(device["swap"]["settled"] for device in devices if device.get("swap"))


@functools.cache
def _counter() -> list[int]:
    """Steps of all optimizers of this process since it was first asked for: one hook for all."""
    count = [0]

    def ends(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        count[0] += 1

    # torch.optim hides this module behind the class of nearly its name.
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(ends)
    return count


def steps_from_now() -> Callable[[], int]:
    """Counts steps of any optimizer."""
    count = _counter()
    before = count[0]
    return lambda: count[0] - before
