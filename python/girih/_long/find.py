"""The layers of a model."""

from __future__ import annotations

from typing import Any

import torch

from girih._errors import GirihError


def layers_of(model: Any, names: str | None = None) -> list[tuple[str, Any]]:
    """The layers that repeat, with their names: the longest list of modules of one class.

    `names` is the name of the list, where it is another (`model.layers`).

    Raises:
        GirihError: if there is none.
    """
    lists = [
        (name, list(module))
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 0
    ]
    if names is not None:
        chosen = [found for name, found in lists if name == names]
        if not chosen:
            known = ", ".join(sorted(name for name, _ in lists if name)) or "none"
            raise GirihError(f"name a list of layers that is there: {known}; not {names}")
        return [(f"{names}.{index}", layer) for index, layer in enumerate(chosen[0])]
    alike = [(name, found) for name, found in lists if len({type(it) for it in found}) == 1]
    if not alike:
        raise GirihError(
            "give layers=, the name of the list of the model's layers: it has no list of modules "
            "of one class"
        )

    def size(found: list[Any]) -> int:
        return sum(parameter.numel() for layer in found for parameter in layer.parameters())

    name, found = max(alike, key=lambda it: size(it[1]))
    return [(f"{name}.{index}", layer) for index, layer in enumerate(found)]
