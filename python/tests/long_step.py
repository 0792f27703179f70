"""The memory of a training step of a Llama at a long context, on a simulated GPU.

What each operator of a decoder layer allocates, saves and uses, after Hugging Face's code in
bfloat16 (hidden 4096, MLP 11008, 32 heads): at 131,072 tokens a tensor of the residual stream is
1 GiB, one of the MLP 2.75 GiB, and the norms' copies in 32 bits 2 GiB. Nothing is computed, so the
sizes are the real ones.
"""

from __future__ import annotations

from typing import Any

from simulated import MIB, Gpu, Tensor


class Shapes:
    """MiB of the tensors of a layer at so many tokens."""

    def __init__(self, tokens: int, hidden: int = 4096, ffn: int = 11008, heads: int = 32) -> None:
        self.hidden = tokens * hidden * 2 / MIB
        self.ffn = tokens * ffn * 2 / MIB
        self.wide = 2 * self.hidden  # the norms', in 32 bits
        self.lse = tokens * heads * 4 / MIB
        self.matrix = hidden * hidden * 2 / MIB
        self.mlp_matrix = hidden * ffn * 2 / MIB
        self.table = 32000 * hidden * 2 / MIB


class Step:
    """Steps of a model of some layers: `run` does one."""

    def __init__(self, gpu: Gpu, tokens: int, layers: int) -> None:
        self.gpu, self.layers, self.of = gpu, layers, Shapes(tokens)
        shapes = self.of
        each = [shapes.matrix] * 4 + [shapes.mlp_matrix] * 3
        self.weights = [gpu.allocate(size) for size in each * layers + [shapes.table] * 2]
        self.sizes = each * layers + [shapes.table] * 2
        self.states: list[int] = []
        self.grads: list[int] = []

    def new(self, size: float) -> Tensor:
        return Tensor(self.gpu, size)

    def norm(self, saved: list[Any], _input: Tensor) -> Tensor:
        """The input in 32 bits and the normalized one are saved."""
        shapes, save = self.of, self.gpu.save
        wide = self.new(shapes.wide)
        square = self.new(shapes.wide)
        saved.append((save(wide), shapes.wide))
        del square
        normal = self.new(shapes.wide)
        narrow = self.new(shapes.hidden)
        del normal, wide
        saved.append((save(narrow), shapes.hidden))
        return self.new(shapes.hidden)

    def layer(self, saved: list[Any], states: Tensor) -> Tensor:
        """One layer's forward pass: what it saves, with the size of each gradient."""
        shapes, save = self.of, self.gpu.save
        normal = self.norm(saved, states)
        saved.append((save(normal), shapes.hidden))
        q, k, v = (self.new(shapes.hidden) for _ in range(3))
        del normal
        turned = [self.new(shapes.hidden) for _ in range(2)]
        del q, k
        out, lse = self.new(shapes.hidden), self.new(shapes.lse)
        saved.extend((save(one), shapes.hidden) for one in (*turned, v, out))
        saved.append((save(lse), 0))
        del turned, v, lse
        after = self.new(shapes.hidden)
        del out
        states = self.new(shapes.hidden)
        del after
        normal = self.norm(saved, states)
        saved.append((save(normal), shapes.hidden))
        gate = self.new(shapes.ffn)
        saved.append((save(gate), shapes.ffn))
        active = self.new(shapes.ffn)
        del gate
        up = self.new(shapes.ffn)
        del normal
        product = self.new(shapes.ffn)
        saved.extend((save(one), shapes.ffn) for one in (active, up))
        del active, up
        down = self.new(shapes.hidden)
        saved.append((save(product), shapes.ffn))
        del product
        result = self.new(shapes.hidden)
        del down, states
        return result

    def run(self) -> None:
        """Forward, backward and the optimizer, whose states come with the first."""
        self.gpu.mark("step")
        saved: list[Any] = []
        states = self.new(self.of.hidden)
        for _ in range(self.layers):
            states = self.layer(saved, states)
        del states
        weights = list(reversed(self.sizes))
        flowing = self.new(self.of.hidden)
        for number in range(len(saved) - 1, -1, -1):
            one, size = saved[number]
            tensor = self.gpu.use(one)
            assert self.gpu.storages[tensor.storage][1] != 0, "a saved tensor has no bytes"
            if size:
                flowing = self.new(size)
            while weights and len(weights) * len(saved) > number * len(self.sizes):
                self.grads.append(self.gpu.allocate(weights.pop(0)))
            del tensor, one
            with self.gpu.working():
                saved.pop()
        del flowing
        if not self.states:
            self.states = [self.gpu.allocate(size) for size in self.sizes * 2]
        while self.grads:
            self.gpu.free(self.grads.pop())

    def end(self) -> None:
        """Everything is given back."""
        for address in self.weights + self.states:
            self.gpu.free(address)
