"""Weights that live on the host: a layer fetches its own when it runs, and again for backward.

The leaves are pinned tensors of the host, so that gradients come there too and the optimizer works
there, as with offloading of parameters and optimizer states in ZeRO-3. Fetching is an operation
that autograd knows: what a layer has fetched goes as soon as nothing needs it, which is at once
only where the layer is recomputed.
"""

import functools
from typing import Any

import torch


def to_host(layer: torch.nn.Module, device: torch.device) -> None:
    """Puts the weights of a layer on the host, and has its forward pass fetch them."""
    forward = layer.forward
    is_gpu = device.type == "cuda"
    for parameter in layer.parameters():
        host = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=is_gpu)
        host.copy_(parameter.detach())
        parameter.data = host

    @functools.wraps(forward)
    def fetching(*args: Any, **kwargs: Any) -> Any:
        # What `functional_call` runs is the module itself, and so must find the forward of before.
        fetched = {
            name: parameter.to(device, non_blocking=True)
            for name, parameter in layer.named_parameters()
        }
        layer.forward = forward  # type: ignore[method-assign]
        try:
            return torch.func.functional_call(Inner(layer), prefixed(fetched), args, kwargs)
        finally:
            layer.forward = fetching  # type: ignore[method-assign]

    layer.forward = fetching  # type: ignore[method-assign]


def prefixed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as `Inner` has them."""
    return {f"layer.{name}": tensor for name, tensor in tensors.items()}


class Inner(torch.nn.Module):
    """A layer's forward pass alone: its `__call__` may be one that recomputes, and we are in it."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's."""
        return self.layer.forward(*args, **kwargs)
