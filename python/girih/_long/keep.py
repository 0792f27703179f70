"""What is kept where products are: the fewest bytes from which the rest comes without a product.

Of a layer that keeps what products of matrices give, its replays run none of them. The same holds
where in place of a product's output is kept what autograd saved of it: of a query that is rotated
by its position, say, the rotated one, and nothing is rotated again. Which is fewer bytes is a
minimum cut, between the products and what must be there for the backward pass. Of several the one
that is nearest to what is saved: it leaves the least to be computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Keeping:
    """What a pass keeps."""

    dropped: frozenset[int]
    """Products that nothing needs: by the number of their notes."""
    places: frozenset[int]
    """What is kept as it was saved: as many saves came before each."""


def cheapest(
    products: Mapping[int, int],
    sizes: Mapping[Any, int],
    needs: Mapping[Any, frozenset[int]],
) -> tuple[set[int], set[Any]]:
    """Which products are kept, and which of what is saved, so that their bytes are the fewest.

    `products` and `sizes` are bytes; `needs` are the products that something saved comes from: it
    is kept itself, or all of these are. Of equal ways the one that keeps the most of what is saved.
    """
    saved = {it: sizes[it] for it in needs}
    flow: dict[tuple[int, Any], int] = {}
    given, taken = dict.fromkeys(products, 0), dict.fromkeys(saved, 0)

    def path() -> tuple[list[tuple[int, Any, int]], int] | None:
        """From a product that can give to something that can take more, there and back again."""
        came: dict[tuple[str, Hashable], tuple[str, Hashable] | None] = {
            ("product", it): None for it, most in products.items() if given[it] < most
        }
        left = list(came)
        while left:
            node = kind, name = left.pop()
            if kind == "product":
                steps = [("saved", it) for it in saved if name in needs[it]]
            elif taken[name] < saved[name]:
                return _walk(node, came)
            else:
                steps = [("product", it) for it in needs[name] if flow.get((it, name), 0)]
            for step in steps:
                if step not in came:
                    came[step] = node
                    left.append(step)
        return None

    def _walk(node: Any, came: Any) -> tuple[list[tuple[int, Any, int]], int]:
        most, edges, last = saved[node[1]] - taken[node[1]], [], node
        while (before := came[node]) is not None:
            if node[0] == "saved":
                edges.append((before[1], node[1], 1))
            else:
                edges.append((node[1], before[1], -1))
                most = min(most, flow[node[1], before[1]])
            node = before
        most = min(most, products[node[1]] - given[node[1]])
        given[node[1]] += most
        taken[last[1]] += most
        return edges, most

    while (found := path()) is not None:
        edges, most = found
        for product, it, sign in edges:
            flow[product, it] = flow.get((product, it), 0) + sign * most
    # What still could take more is not the bottleneck, nor is what feeds it: those products are.
    open_saved = {it for it in saved if taken[it] < saved[it]}
    left, kept = list(open_saved), set[int]()
    while left:
        for product in needs[left.pop()]:
            if product in kept:
                continue
            kept.add(product)
            more = {it for it in saved if flow.get((product, it), 0)} - open_saved
            open_saved |= more
            left += more
    return kept, set(saved) - open_saved
