"""Small programs by how they train: see `kinds_common.py`."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils import checkpoint
from torch.utils.checkpoint import checkpoint as recompute

from checks.kinds_common import ROWS, WIDTH, Feed, Notes, Program, stack

saved_tensors_hooks = torch.autograd.graph.saved_tensors_hooks


def accumulated(note: Notes) -> None:
    """Microbatches of other sizes, in any number, gradients clipped; some without a gradient."""
    model = stack().to(note.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for number in range(4):
        for part in range(1 + number % 3):
            rows = ROWS // (part + 1) + 17 * number
            loss = model(note.randn(rows, WIDTH)).square().mean() / (part + 1)
            loss.backward()
            note(loss)
        note(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
    note.model(model)


def scaled(note: Notes) -> None:
    """Autocast and scaled gradients, some of which overflow: these steps are left out."""
    model = stack(2).to(note.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler(note.device.type, init_scale=2.0**8, growth_interval=2)
    for number in range(4):
        optimizer.zero_grad()
        with torch.autocast(note.device.type, torch.bfloat16):
            loss = F.mse_loss(model(note.randn(ROWS, WIDTH)).float(), note.randn(ROWS, WIDTH))
            loss = loss * (float("inf") if number in (1, 4) else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        note(loss, torch.tensor(scaler.get_scale()))
    note.model(model)


def averaged(note: Notes) -> None:
    """Averages of weights, of which the running means are found anew by passes of their own."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), stack(3)).to(note.device)
    swa = torch.optim.swa_utils.AveragedModel(model, use_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(note.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        swa.update_parameters(model)
        note(loss)
    torch.optim.swa_utils.update_bn([note.randn(ROWS, WIDTH) for _ in range(2)], swa)
    note.model(model)
    note.model(swa)


def closures(note: Notes) -> None:
    """LBFGS asks for the loss as often as it likes; SAM climbs before each step."""
    model = stack(3).to(note.device)
    x = note.randn(ROWS, WIDTH)
    line = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        line.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        note(line.step(closure))
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        closure()
        with torch.no_grad():
            climbs = [it.grad.sign() * 1e-3 for it in model.parameters() if it.grad is not None]
            torch._foreach_add_(list(model.parameters()), climbs)
        closure()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), climbs)
        base.step()
    note.model(model)


def checkpoints(note: Notes) -> None:
    """Recomputation of both kinds, one within the other, in part, and of what is chosen."""
    model = nn.ModuleList(nn.Sequential(Feed(), nn.Dropout(0.1)) for _ in range(6)).to(note.device)

    def keeps(_: Any, op: Any, *__: Any, **___: Any) -> checkpoint.CheckpointPolicy:
        is_product = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        policy = checkpoint.CheckpointPolicy
        return policy.MUST_SAVE if is_product else policy.PREFER_RECOMPUTE

    chosen = functools.partial(checkpoint.create_selective_checkpoint_contexts, keeps)

    def inner(x: Tensor, is_reentrant: bool) -> Tensor:
        y: Tensor = recompute(model[1], model[0](x), use_reentrant=is_reentrant)
        return model[2](y)

    def loss_of(_: int) -> Tensor:
        x = note.randn(ROWS, WIDTH, requires_grad=True)
        x = recompute(inner, x, False, use_reentrant=False)
        x = recompute(inner, x, True, use_reentrant=True)
        x = recompute(model[3], x, use_reentrant=False, context_fn=chosen)
        x = checkpoint.checkpoint_sequential(model[4:], 2, x, use_reentrant=False)
        return x.square().mean()

    note.train(model, loss_of)


def own_hooks(note: Notes) -> None:
    """Hooks of the program's own within, that pack to fewer bits, to the host, or count."""
    model, counts = stack(6).to(note.device), [0]

    def halves(it: Tensor) -> Any:
        counts[0] += 1
        return it.half() if it.dtype == torch.float32 and it.numel() > 9999 else it

    def loss_of(_: int) -> Tensor:
        x = model[0](note.randn(ROWS, WIDTH))
        with saved_tensors_hooks(halves, lambda it: it.float() if it.dtype == torch.half else it):
            x = model[1](x)
            with torch.autograd.graph.save_on_cpu():
                x = model[2](x)
        x = model[3](x)
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"), torch.no_grad():
            model[4](x)
        return model[5](model[4](x)).square().mean()

    note.train(model, loss_of, steps=3)
    note(torch.tensor(counts[0]))
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        x = model(note.randn(ROWS, WIDTH))
        y = x.sin()
        x.detach().mul_(2)
        (y + x).square().mean().backward()
    note.model(model)


def parametrized(note: Notes) -> None:
    """Weights that are computed: norms of two kinds, orthogonal ones, one that is pruned."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    parametrizations.weight_norm(layers[0])
    parametrizations.spectral_norm(layers[1])
    parametrizations.orthogonal(layers[2])
    prune.random_unstructured(layers[3], "weight", 0.3)
    model = nn.Sequential()
    for layer in layers:
        model.extend([layer, nn.LeakyReLU(0.1, inplace=True)])
    model.to(note.device)

    def loss_of(number: int) -> Tensor:
        x = note.randn(ROWS, WIDTH)
        held = parametrize.cached() if number % 2 else contextlib.nullcontext()
        with held:
            return model(model(x) + x).square().mean()

    note.train(model, loss_of)


class Adapted(nn.Module):
    """A frozen layer with two small matrices beside it, which may be merged into it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, layer.in_features, device=layer.weight.device))
        self.up = nn.Parameter(torch.zeros(layer.out_features, 4, device=layer.weight.device))
        self.is_merged = False

    @torch.no_grad()
    def merge(self, sign: int) -> None:
        """Into the weight, in place, or out of it again."""
        self.layer.weight.data += sign * (self.up @ self.down)
        self.is_merged = sign > 0

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, adapted."""
        y: Tensor = self.layer(x)
        return y if self.is_merged else y + F.linear(F.linear(x, self.down), self.up)


def adapted(note: Notes) -> None:
    """A model that changes as it runs: frozen, given adapters, merged for evaluations, thawed."""
    model = stack(4).to(note.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(8):
        if number == 2:
            model.requires_grad_(False)
            for layer in model:
                layer.up = Adapted(layer.up)
            optimizer.add_param_group({"params": [it.up.up for it in model], "lr": 1e-2})
            optimizer.add_param_group({"params": [it.up.down for it in model]})
        if number == 5:
            model[3].down.requires_grad_(True)
            model[0] = nn.Identity()
        optimizer.zero_grad()
        x = note.randn(ROWS, WIDTH)
        loss = F.cross_entropy(model(x), note.integers(WIDTH, ROWS))
        loss.backward()
        optimizer.step()
        note(loss)
        if number in (3, 6):
            for layer in model[1:]:
                layer.up.merge(1)
            with torch.inference_mode():
                note(model(x))
            for layer in model[1:]:
                layer.up.merge(-1)
    note.model(model)


def in_place(note: Notes) -> None:
    """Changes in place of what may be changed, views that are written through, masks of bytes."""
    first, second = stack(2).to(note.device), stack(2).to(note.device)
    model = nn.ModuleList([first, second])

    def loss_of(number: int) -> Tensor:
        x = first(note.randn(ROWS, WIDTH))
        x = F.dropout(F.relu_(x * 1).mul(2), 0.1, inplace=True)
        y = torch.zeros(ROWS, 2 * WIDTH, device=note.device)
        y[:, :WIDTH] = x
        y[::2, WIDTH:] += x[1::2].exp()
        y.view(-1, WIDTH)[number].clamp_(max=1)
        mask = (y > 0.5).to(torch.uint8)
        y = y.masked_fill_(mask.bool() & (note.integers(9, ROWS, 1) == 0), 0.25)
        y.index_put_((note.integers(ROWS, 99),), note.randn(99, 2 * WIDTH) * x.mean(), True)
        z = second(y[:, WIDTH:].tanh_() + y[:, :WIDTH].sigmoid())
        z.register_hook(lambda grad: grad.mul(2))
        return torch.addcmul(z, z, z.detach()).square_().mean()

    note.train(model, loss_of)


def overlapping(note: Notes) -> None:
    """Views of one storage saved by many: overlapping, expanded, transposed, empty, of none."""
    model = stack(2).to(note.device)
    scale = nn.Parameter(torch.ones((), device=note.device))
    own = nn.ModuleList([model, nn.ParameterList([scale])])

    def loss_of(_: int) -> Tensor:
        x = model(note.randn(ROWS, WIDTH))
        windows = x.unfold(0, 8, 2)
        loss = (windows * windows.flip(2)).mean() + (windows.sin() * own[1][0]).mean()
        strided = x.as_strided((ROWS - 1, WIDTH), (WIDTH, 1), 32)
        loss = loss + (strided * strided.exp()).mean()
        wide = x.mean(0, keepdim=True).expand(ROWS, -1)
        loss = loss + (wide * x).mean() + (wide.exp() * wide).mean()
        turned = x.T.reshape(8, -1, ROWS).transpose(0, 2)
        loss = loss + (turned @ turned.mT).square().mean() + x[:0].exp().sum()
        parts = x.split([ROWS // 2, 0, ROWS // 2])
        loss = loss + (parts[0] * parts[2]).mean() + parts[1].square().sum()
        as_bytes = x.detach().view(torch.int32).bitwise_and(1).float()
        same = x.exp()
        return loss + (same * same * as_bytes).mean() + torch.stack([same, same]).prod(0).mean()

    note.train(own, loss_of)


class Rounded(torch.autograd.Function):
    """Rounds to eight bits, with the gradient of one that does not: keeps bytes and a scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, least: float) -> tuple[Tensor, Tensor]:
        """The rounded, and the bytes, of which there is no gradient."""
        scale = x.abs().amax(1, keepdim=True).clamp(min=least) / 127
        whole = (x / scale).round().to(torch.int8)
        ctx.save_for_backward(x, whole, scale, None)
        ctx.mark_non_differentiable(whole)
        ctx.set_materialize_grads(False)
        return whole * scale, whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None]:
        """Of what was no extreme."""
        _, whole, scale, nothing = ctx.saved_tensors
        assert nothing is None
        assert ctx.needs_input_grad == (True, False)
        again = ctx.saved_tensors
        return gradient * (whole.abs() < 127) * (again[0] * 0 + 1) * (scale > 0), None


class Coupled(torch.autograd.Function):
    """A reversible layer: keeps what it gives, and runs again within its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module, *weights: Tensor) -> Tensor:
        """Half is added to the other half."""
        one, two = x.chunk(2, -1)
        with torch.no_grad():
            y = torch.cat([one, two + layer(one)], -1)
        ctx.layer, ctx.weights = layer, weights
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """A graph of its own within another's backward pass."""
        (y,) = ctx.saved_tensors
        one = y.chunk(2, -1)[0].detach().requires_grad_()
        with torch.enable_grad():
            inner = ctx.layer(one)
        first, second = gradient.chunk(2, -1)
        found = torch.autograd.grad(inner, (one, *ctx.weights), second)
        return torch.cat([first + found[0], second], -1), None, *found[1:]


def functions(note: Notes) -> None:
    """Functions of autograd: bytes, reversible layers, fake quantization, in place with marks."""
    inner = nn.ModuleList(Feed(WIDTH // 2) for _ in range(4)).to(note.device)
    model = nn.ModuleList([inner, stack(1).to(note.device)])

    def loss_of(_: int) -> Tensor:
        x = model[1](note.randn(ROWS, WIDTH))
        for layer in inner:
            x = Coupled.apply(x, layer, *layer.parameters()).flip(-1)
            x, whole = Rounded.apply(x, 1e-6)
            assert not whole.requires_grad
        x = torch.fake_quantize_per_tensor_affine(x, 0.01, 0, -128, 127)
        return x.square().mean()

    note.train(model, loss_of)


def hooked(note: Notes) -> None:
    """Hooks that change what they see; an optimizer within the backward pass."""
    model = stack(5).to(note.device)
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda _, __, out: out * 0.5 + 0.1)
    model[1].register_forward_pre_hook(lambda _, args: (args[0].clone().clamp_(-2, 2),))
    model[2].register_full_backward_hook(lambda _, grads, __: (grads[0] * 1.5,))
    model[3].register_full_backward_pre_hook(lambda _, grads: (grads[0].clamp(-1, 1),))
    model[4].register_forward_hook(lambda _, __, out: seen.append(out.detach()))
    steps = {it: torch.optim.Adam([it], lr=1e-3) for it in model.parameters()}

    def step(parameter: Tensor) -> None:
        steps[parameter].step()
        steps[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(4):
        loss = model(note.randn(ROWS, WIDTH)).square().mean()
        nodes = [loss.grad_fn]
        assert nodes[0] is not None
        nodes[0].register_prehook(lambda grads: (grads[0] * 2,))
        loss.backward()
        note(loss, seen.pop())
    note.model(model)


def twice(note: Notes) -> None:
    """Graphs run backward again and in part: by other roots, for some inputs alone."""
    model = stack(4).to(note.device)
    for _ in range(3):
        x = note.randn(ROWS, WIDTH, requires_grad=True)
        one = model[:2](x)
        two, three = model[2](one), model[3](one)
        loss, other = two.square().mean(), (three * two).mean()
        note(*torch.autograd.grad(loss, [x, model[0].up.weight], retain_graph=True))
        note(*torch.autograd.grad(other, one, retain_graph=True))
        loss.backward(retain_graph=True, inputs=[model[2].down.weight])
        torch.autograd.backward([loss, other], [torch.tensor(2.0).to(loss), None])
        outside = torch.autograd.grad(model(x).sum(), model[3].parameters(), allow_unused=True)
        note(*outside, x.grad)
        rows = torch.autograd.functional.vjp(model, x[:2048].detach(), x[:2048].detach())
        note(*rows)
        product = torch.autograd.functional.hvp(
            lambda it: model(it).tanh().sum(), x[:999].detach(), x[:999].detach()
        )[1]
        note(product)
    note.model(model)


def interrupted(note: Notes) -> None:
    """Errors in the middle of both passes, and warnings; steps go on after them."""
    model, fails = stack(5).to(note.device), [""]

    def layer_fails(_: nn.Module, __: Any, out: Tensor) -> None:
        if fails[0] == "forward":
            raise ValueError("in the forward pass")
        if fails[0] == "backward":
            out.register_hook(lambda _: (_ for _ in ()).throw(KeyError("backward")))

    model[2].register_forward_hook(layer_fails)
    kept: list[Any] = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, way in enumerate(["", "forward", "backward", "", "backward", "forward", ""]):
        fails[0] = way
        optimizer.zero_grad()
        try:
            loss = model(note.randn(ROWS, WIDTH)).square().mean()
            loss.backward()
        except (ValueError, KeyError) as error:
            # The frames, and so what was saved, live on for a step.
            kept[:] = [error] if number % 2 else []
            continue
        optimizer.step()
        note(loss)
        with torch.no_grad():
            note(model(note.randn(ROWS // 2, WIDTH)))
        with torch.inference_mode():
            note(model(note.randn(2 * ROWS, WIDTH)))
    kept.clear()
    note.model(model)


PROGRAMS: list[Program] = [
    accumulated,
    scaled,
    averaged,
    closures,
    checkpoints,
    own_hooks,
    parametrized,
    adapted,
    in_place,
    overlapping,
    functions,
    hooked,
    twice,
    interrupted,
]
