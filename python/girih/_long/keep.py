"""What is kept where products are: the fewest bytes from which the rest comes without a product.

Of a layer that keeps what products of matrices give, its replays run none of them. The same holds
where in place of a product's output is kept what autograd saved of it: of a query that is rotated
by its position, say, the rotated one, and nothing is rotated again. Which is fewer bytes is a
minimum cut, between the products and what must be there for the backward pass. Of several the one
that is nearest to what is saved: it leaves the least to be computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
    flow = _Flow(products, {it: sizes[it] for it in needs}, needs)
    while flow.grows():
        pass
    return flow.cut()


class _Flow:
    """Bytes that go from products to what is saved of them, as many as both sides have.

    As many as go at most are kept at least, and there is a way to keep no more.
    """

    def __init__(
        self,
        products: Mapping[int, int],
        saved: Mapping[Any, int],
        needs: Mapping[Any, frozenset[int]],
    ) -> None:
        self.needs = needs
        self.left = dict(products)
        """Bytes that a product could still give."""
        self.room = dict(saved)
        """Bytes that something saved could still take."""
        self.goes: dict[tuple[int, Any], int] = {}

    def grows(self) -> bool:
        """Sends more from a product that has some to a place that has room, if there is a way.

        A way may take back what goes elsewhere: `came` has for each end where it was come from.
        """
        came: dict[tuple[bool, Any], Any] = {
            (True, it): None for it, left in self.left.items() if left
        }
        ends = list(came)
        while ends:
            end = is_product, name = ends.pop()
            if not is_product and self.room[name]:
                self._send(end, came)
                return True
            if is_product:
                others = [(False, it) for it, need in self.needs.items() if name in need]
            else:
                others = [(True, it) for it in self.needs[name] if self.goes.get((it, name))]
            for other in others:
                if other not in came:
                    came[other] = end
                    ends.append(other)
        return False

    def _send(self, end: tuple[bool, Any], came: dict[tuple[bool, Any], Any]) -> None:
        way = [end]
        while (before := came[way[-1]]) is not None:
            way.append(before)
        first, last = way[-1][1], way[0][1]
        pairs = list(zip(way[1:], way[:-1], strict=True))
        back = [(name, other) for (is_product, other), (_, name) in pairs if not is_product]
        most = min([self.left[first], self.room[last], *(self.goes[it] for it in back)])
        self.left[first] -= most
        self.room[last] -= most
        for (is_product, name), (_, other) in pairs:
            pair = (name, other) if is_product else (other, name)
            self.goes[pair] = self.goes.get(pair, 0) + (most if is_product else -most)

    def cut(self) -> tuple[set[int], set[Any]]:
        """What is kept: products from which something with room is come to, and what has none."""
        with_room = {it for it, room in self.room.items() if room}
        left, kept = list(with_room), set[int]()
        while left:
            for product in self.needs[left.pop()] - kept:
                kept.add(product)
                # What it gives to others it could give to these.
                more = {it for it in self.room if self.goes.get((product, it))} - with_room
                with_room |= more
                left += more
        return kept, self.room.keys() - with_room
