"""What of a layer is kept."""

from __future__ import annotations

import dataclasses

PRODUCTS = "products"
"""In place of a part of the tokens: what products of matrices give is kept of all of them."""
Alpha = float | str
"""A part of the tokens, 0 to 1, or `PRODUCTS`."""


@dataclasses.dataclass(frozen=True)
class Part:
    """What of a pass is kept."""

    first: int
    """The first token that is computed again; all before it are kept."""
    products: bool = False
    """Nothing is kept in part (`first` is 0), but the outputs of products are: what is computed
    again then are norms, activations, sums, at the price of reading them."""


@dataclasses.dataclass
class Held:
    """Bytes of each token that a layer holds for its backward pass; 0 where that was not seen."""

    nothing: float = 0.0
    """Where nothing is kept that can be computed again."""
    products: float = 0.0
    """Where products are kept."""
    whole: float = 0.0
    """Where everything is."""


def is_alpha(part: object) -> bool:
    """Whether it is one."""
    if isinstance(part, str):
        return part == PRODUCTS
    return isinstance(part, (int, float)) and 0 <= part <= 1
