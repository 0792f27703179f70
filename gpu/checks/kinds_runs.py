"""Small programs by what is around their steps: see `kinds_common.py`."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checks.kinds_common import ROWS, WIDTH, Notes, Program, stack


def generating(note: Notes) -> None:
    """Between steps words are generated with keys and values kept; some learn from them."""
    width, words = 32, 200
    table = nn.Embedding(words, width)
    layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
    model = nn.ModuleList([table, layers]).to(note.device)

    def run(ids: Tensor, cache: list[Any] | None) -> Tensor:
        x = table(ids)
        for at, layer in enumerate(layers):
            q, k, v = layer(x).chunk(3, -1)
            if cache is not None:
                if cache[at] is not None:
                    k, v = torch.cat([cache[at][0], k], 1), torch.cat([cache[at][1], v], 1)
                cache[at] = (k, v)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return x @ table.weight.T

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(4):
        ids = note.integers(words, 24, 64 + 9 * number)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(ids, None)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        # Kept with their graph: the second half learns through the first half's keys.
        cache: list[Any] = [None] * 3
        run(ids[:, :32], cache)
        loss = loss + run(ids[:, 32:], cache).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        note(loss)
        model.eval()
        with torch.inference_mode(number % 2 == 0), torch.no_grad():
            cache, last = [None] * 3, ids[:, :1]
            for _ in range(6):
                last = run(last, cache)[:, -1:].argmax(-1)
            note(last, *cache[0])
        model.train()
    note.model(model)


def careful(note: Notes) -> None:
    """Anomalies are looked for, algorithms deterministic, flops counted by a mode."""
    from torch.utils.flop_counter import FlopCounterMode

    model = stack(3).to(note.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), FlopCounterMode(display=False) as flops:
            note.train(model, lambda _: model(note.randn(ROWS, WIDTH)).square().mean(), steps=3)
    note(torch.tensor(flops.get_total_flops()))
    try:
        with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
            warnings.simplefilter("ignore")
            (model(note.randn(ROWS, WIDTH)) * 0).sqrt().sum().backward()
    except RuntimeError as error:
        note(torch.tensor("nan" in str(error)))


class Images(torch.utils.data.Dataset[Tensor]):
    """Samples that are drawn where they are asked for."""

    def __len__(self) -> int:
        return 4 * 1024

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), float(index)).sin()


def loaded(note: Notes) -> None:
    """Samples come from other processes and threads; passes go forward in another thread."""
    model = stack(4).to(note.device)
    loader = torch.utils.data.DataLoader(
        Images(), 1024, num_workers=1, multiprocessing_context="fork"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for samples in loader:
        x = samples.to(note.device).repeat(4, 1)
        losses: list[Tensor] = []
        thread = threading.Thread(target=lambda: losses.append(model(x).square().mean()))  # noqa: B023
        thread.start()
        thread.join()
        losses.append(model(x + 1).square().mean())
        backward = threading.Thread(target=losses[1].backward)
        backward.start()
        backward.join()
        losses[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        note(*losses)
    note.model(model)


def in_turns(note: Notes) -> None:
    """Two models in turns, the second of another width and length in each of its steps."""
    models = [stack(4).to(note.device), stack(3, 2 * WIDTH).to(note.device)]
    optimizers = [torch.optim.AdamW(it.parameters(), lr=1e-3) for it in models]
    for number in range(9):
        turn = 0 if number % 3 else 1
        rows = ROWS - (321 * number if turn else 0)
        models[1 - turn].eval()
        models[turn].train()
        optimizers[turn].zero_grad()
        loss = models[turn](note.randn(rows, WIDTH * (1 + turn))).square().mean()
        loss.backward()
        optimizers[turn].step()
        note(loss)
    for model in models:
        note.model(model)


def compiled(note: Notes) -> None:
    """A compiled model whose lengths change, with a break in it, and a compiled part."""
    torch._dynamo.reset()
    model = stack(4).to(note.device)

    def run(x: Tensor) -> Tensor:
        x = model[1](model[0](x))
        torch._dynamo.graph_break()
        return model[2](x)

    whole = torch.compile(run, backend="aot_eager")
    part = torch.compile(model[3], backend="eager", dynamic=True)
    note.train(
        model, lambda at: part(whole(note.randn(ROWS + 99 * (at % 3), WIDTH))).square().mean()
    )


def resumed(note: Notes) -> None:
    """States saved and loaded in the middle, weights exchanged, moved to another type and back."""
    model = stack(4).to(note.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = model(note.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)

    step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    step()
    file.seek(0)
    loaded_states = torch.load(file)
    model.load_state_dict(loaded_states["model"], assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(loaded_states["optimizer"])
    step()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat * 1.01, model.parameters())
    step()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    step()
    twin = copy.deepcopy(optimizer)
    note(*(it for state in twin.state.values() for it in state.values()))
    model.bfloat16().float()
    step()
    note.model(model)


def held(note: Notes) -> None:
    """What was saved is looked at and held by other ways than a tensor of Python."""
    model, kept = stack(5).to(note.device), []
    on_host = note.device.type == "cpu"

    def hold(number: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, out: Tensor) -> None:
            plain: Any = out.detach()
            ways: list[Callable[[], Any]] = [
                lambda: plain.numpy() if on_host else plain,
                lambda: torch.from_dlpack(plain),
                plain.untyped_storage,
                lambda: memoryview(plain.numpy()) if on_host else plain,
                lambda: out.grad_fn.next_functions,  # type: ignore[union-attr]
            ]
            kept.append((ways[number](), plain.double().sum()))

        return hook

    for number, layer in enumerate(model):
        layer.register_forward_hook(hold(number))
    for _ in range(3):
        x = model(note.randn(ROWS, WIDTH))
        y = x.exp()
        z = y * y.sin()
        loss = z.square().mean()
        node = loss.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        seen = node._saved_self
        extra = [note.randn(ROWS, WIDTH) for _ in range(3)]
        note(seen, y)
        del x, y, z, seen, extra
        for thing, total in kept:
            if isinstance(thing, memoryview | torch.UntypedStorage):
                flat = (
                    torch.frombuffer(thing, dtype=torch.float32)
                    if isinstance(thing, memoryview)
                    else torch.tensor([], device=note.device).set_(thing)
                )
                assert flat.double().sum().isfinite()
            elif not isinstance(thing, tuple):
                assert torch.as_tensor(thing).double().sum().allclose(total)
        loss.backward()
        kept.clear()
        note(loss)
    note.model(model)


PROGRAMS: list[Program] = [
    generating,
    careful,
    loaded,
    in_turns,
    compiled,
    resumed,
    held,
]
