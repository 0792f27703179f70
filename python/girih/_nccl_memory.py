"""What NCCL's collectives ask of the GPU's memory beyond their own tensors.

A world that is faked moves nothing, so it asks for none of it; a recording of one rank has these
requests all the same (`_fake_world`). By the code of torch 2.11:

| collective | what is asked for, in this order |
|:--|:--|
| `barrier` | a byte, which stays until the next one; a float |
| `all_gather` of a list, `reduce_scatter` of one | all of the list side by side |
| `all_gather_object` | the pickled object; its size; all sizes; these side by side; a flag for |
| | each comparison of two sizes; all objects; these side by side |
| `broadcast_object_list` | as its source does: each pickled object and its size; all sizes, and |
| | all objects if they are several |

Objects and barriers are on the GPU only where NCCL is all that was asked for: with
`cpu:gloo,cuda:nccl`, or without a word, they are gloo's.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any


class Memory:
    """Asks for it, on the current GPU; without one for nothing."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # PyTorch keeps the tensor of a barrier in a static variable.
        self._of_barrier: Any = None

    def _empty(self, count: int, dtype: Any) -> Any:
        return self._torch.empty(count, dtype=dtype, device="cuda")

    def is_there(self) -> bool:
        """Whether there is a GPU."""
        return bool(self._torch.cuda.is_available())

    def barrier(self) -> None:
        """A barrier's."""
        if self.is_there():
            self._of_barrier = self._empty(1, self._torch.uint8)
            self._empty(1, self._torch.float32)

    def side_by_side(self, tensors: Iterable[Any]) -> Any:
        """Of a list whose tensors are equally large; to be held while the collective goes on."""
        of = list(tensors)
        is_like = of and all(one.is_cuda and one.shape == of[0].shape for one in of)
        return self._empty(len(of) * of[0].numel(), of[0].dtype) if is_like else None

    def gather_objects(self, mine: object, ranks: int) -> None:
        """Of `all_gather_object`, where every rank has an object as large as this one's."""
        if not self.is_there():
            return
        torch = self._torch
        size = pickled(mine)
        held = [self._empty(size, torch.uint8), self._empty(1, torch.long)]
        held.append(self._empty(ranks, torch.long))
        self._empty(ranks, torch.long)
        for _ in range(ranks - 1):
            self._empty(1, torch.bool)
        held.append(self._empty(ranks * size, torch.uint8))
        self._empty(ranks * size, torch.uint8)
        held.clear()

    def broadcast_objects(self, objects: list[Any]) -> None:
        """Of `broadcast_object_list`, by its source."""
        if not self.is_there():
            return
        torch = self._torch
        sizes = [pickled(one) for one in objects]
        held = []
        for size in sizes:
            held += [self._empty(size, torch.uint8), self._empty(1, torch.long)]
        held.append(self._empty(len(sizes), torch.long))
        if len(sizes) > 1:
            held.append(self._empty(sum(sizes), torch.uint8))
        held.clear()


def pickled(one: object) -> int:
    """Bytes of an object as torch sends it."""
    file = io.BytesIO()
    pickle.Pickler(file).dump(one)
    return file.tell()


class Asked:
    """Which groups a program asked NCCL for, by their names."""

    def __init__(self) -> None:
        self._by_name: dict[str, str] = {}
        self._of_world = ""

    def world(self, backend: object) -> None:
        """The backend of the world; None is for torch to choose."""
        self._of_world = str(backend or "").lower()

    def group(self, name: str, backend: object) -> None:
        """The backend of a group that is made: the fake one where the program named none."""
        asked = str(backend or "").lower()
        self._by_name[name] = self._of_world if asked in ("", "fake") else asked

    def nccl_alone(self, name: str | None) -> bool:
        """Whether NCCL is all that was asked for."""
        return self._by_name.get(name or "", "") in ("nccl", "cuda:nccl")
