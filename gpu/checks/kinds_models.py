"""Small programs by what they are models of: see `kinds_common.py`."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checks.kinds_common import ROWS, WIDTH, Feed, Notes, Program, stack


def packed_recurrent(note: Notes) -> None:
    """Two directions of an LSTM over sequences of any lengths, then a GRU cell by hand."""
    net = nn.LSTM(32, 32, num_layers=2, bidirectional=True, batch_first=True).to(note.device)
    cell, out = nn.GRUCell(64, 64).to(note.device), nn.Linear(64, 3).to(note.device)
    model = nn.ModuleList([net, cell, out])

    def loss_of(number: int) -> Tensor:
        lengths = torch.randint(1, 6, (1200,)).sort(descending=True).values
        x = note.randn(1200, int(lengths[0]), 32)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        each, _ = net(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(each, batch_first=True)
        state = torch.zeros(1200, 64, device=note.device)
        for t in range(min(padded.shape[1], 4)):
            state = cell(padded[:, t], state)
        return out(state).square().mean() + number * state.mean()

    note.train(model, loss_of, steps=3)


class Scan(torch.autograd.Function):
    """A linear recurrence, which keeps its states in attributes and the rest as it should."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, x: Tensor) -> Tensor:
        """Tokens are the first dimension."""
        states, state = [], torch.zeros_like(x[0])
        for t in range(len(x)):
            state = decay[t] * state + x[t]
            states.append(state)
        ctx.states, ctx.ours = torch.stack(states), {"decay": decay}
        ctx.save_for_backward(decay)
        return ctx.states.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """From the last token to the first."""
        (decay,) = ctx.saved_tensors
        assert ctx.ours["decay"].data_ptr() != 0
        carried, decays, xs = torch.zeros_like(gradient[0]), [], []
        for t in reversed(range(len(gradient))):
            carried = carried + gradient[t]
            xs.append(carried)
            decays.append(carried * ctx.states[t - 1] if t else torch.zeros_like(carried))
            carried = carried * decay[t]
        return torch.stack(decays[::-1]), torch.stack(xs[::-1])


def state_space(note: Notes) -> None:
    """Gated scans over tokens by a function of autograd of the program's own."""
    width, model = 48, nn.ModuleList()
    for _ in range(3):
        model.append(nn.ModuleList([nn.Linear(width, 3 * width), nn.Linear(width, width)]))
    model.to(note.device)

    def loss_of(_: int) -> Tensor:
        x = note.randn(24, 256, width)
        for inward, outward in model:
            gate, decay, value = inward(x).chunk(3, dim=-1)
            x = x + outward(Scan.apply(decay.sigmoid(), value) * F.silu(gate))
        return x.square().mean()

    note.train(model, loss_of)


class Crossed(nn.Module):
    """A layer of a decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(width, 4, batch_first=True, dropout=0.1)
        self.other = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed, self.norms = Feed(width), nn.ModuleList(nn.RMSNorm(width) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, padding: Tensor) -> Tensor:
        """Attends to the tokens before, and to what was read."""
        y = self.norms[0](x)
        x = x + self.own(y, y, y, attn_mask=mask, need_weights=False)[0]
        y = self.norms[1](x)
        found, _ = self.other(y, memory, memory, key_padding_mask=padding, need_weights=True)
        fed: Tensor = self.feed(x + found)
        return fed


def translator(note: Notes) -> None:
    """An encoder and a decoder with one table of embeddings, which is the last layer too."""
    width, words = 32, 300
    table = nn.Embedding(words, width)
    reads = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(reads, 2, enable_nested_tensor=False)
    decoder = nn.ModuleList(Crossed(width) for _ in range(2))
    bias = nn.Embedding(32, 1)
    model = nn.ModuleList([table, encoder, decoder, bias]).to(note.device)

    def loss_of(_: int) -> Tensor:
        source, target = note.integers(words, 40, 50), note.integers(words, 40, 33)
        padding = torch.arange(50, device=note.device) >= note.integers(40, 40, 1) + 10
        memory = encoder(table(source), src_key_padding_mask=padding)
        ahead = torch.ones(33, 33, dtype=torch.bool, device=note.device).triu(1)
        far = (torch.arange(33)[:, None] - torch.arange(33)).clamp(0, 31).to(note.device)
        mask = bias(far).squeeze(-1).masked_fill(ahead, -math.inf)
        x = table(target)
        for layer in decoder:
            x = layer(x, memory, mask, padding)
        labels = target.masked_fill(note.integers(5, 40, 33) == 0, -100)
        return F.cross_entropy((x @ table.weight.T).flatten(0, 1), labels.flatten())

    note.train(model, loss_of)


class UNet(nn.Module):
    """Down, up, and what goes across; told of the time and of a class that may be none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for _ in range(2))
        self.up = nn.ModuleList(nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(4))
        self.told = nn.Embedding(11, width)

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        """What noise there is in it."""
        told = (self.told(kind) + time[:, None].sin())[:, :, None, None]
        x, across = self.inward(x), []
        for conv, norm in zip(self.down, self.norms, strict=False):
            across.append(x)
            x = F.silu(norm(conv(x) + told), inplace=True)
        for conv, norm in zip(self.up, list(self.norms)[2:], strict=True):
            x = F.interpolate(x, scale_factor=2)
            x = F.silu(norm(conv(torch.cat([x, across.pop()], 1)))) + told
        noise: Tensor = self.out(x)
        return noise


def diffusion(note: Notes) -> None:
    """Noise that is learnt with classes left out, an average that follows, and images drawn."""
    model = UNet(16).to(note.device)
    average = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(5):
        image, noise = note.randn(24, 3, 32, 32), note.randn(24, 3, 32, 32)
        time, kind = torch.rand(24).to(note.device), note.integers(10, 24)
        kind = torch.where(note.integers(5, 24) == 0, 10, kind)
        mixed = image * (1 - time[:, None, None, None]).sqrt() + noise * time[:, None, None, None]
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        loss = F.mse_loss(model(mixed, time, kind), noise)
        loss.backward()
        note(loss, nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
            if number % 2:
                drawn = note.randn(8, 3, 32, 32)
                for left in (0.9, 0.5):
                    times = torch.full((16,), left, device=note.device)
                    both = torch.cat([torch.arange(8), torch.full((8,), 10)]).to(note.device)
                    told, untold = average(drawn.repeat(2, 1, 1, 1), times, both).chunk(2)
                    drawn = drawn - (untold + 2 * (told - untold)) * (1 - left)
                note(drawn)
    note.model(model)
    note.model(average)


def penalized(note: Notes) -> None:
    """A critic whose gradient is held near one, and a generator, in turns."""
    critic = nn.Sequential(nn.Linear(32, 128), nn.Softplus(), nn.Linear(128, 128), nn.Tanh())
    critic.append(nn.Linear(128, 1)).to(note.device)
    generator = nn.Sequential(nn.Linear(8, 128), nn.SiLU(), nn.Linear(128, 32)).to(note.device)
    judging = torch.optim.RMSprop(critic.parameters(), 1e-4)
    making = torch.optim.Adam(generator.parameters(), 1e-4)
    for _ in range(4):
        made, real = generator(note.randn(2500, 8)), note.randn(2500, 32)
        between = real.lerp(made, torch.rand(2500, 1).to(note.device)).detach().requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(made.detach()).mean() - critic(real).mean()
        loss = loss + 10 * (slope.norm(dim=1) - 1).square().mean()
        judging.zero_grad()
        loss.backward()
        judging.step()
        making.zero_grad()
        (-critic(made).mean()).backward()
        making.step()
        note(loss, slope)
    note.model(critic)
    note.model(generator)


def hypernetwork(note: Notes) -> None:
    """Weights that a network makes, one set for each sample: `vmap` over `functional_call`."""
    made = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)).to(note.device)
    sizes = {name: it.numel() for name, it in made.named_parameters()}
    maker = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, sum(sizes.values())))
    maker.to(note.device)

    def one(flat: Tensor, x: Tensor) -> Tensor:
        parts = flat.split(list(sizes.values()))
        shaped = zip(made.named_parameters(), parts, strict=True)
        weights = {name: part.view_as(it) for (name, it), part in shaped}
        y: Tensor = torch.func.functional_call(made, weights, (x,))
        return y

    def loss_of(number: int) -> Tensor:
        flat, x = maker(note.randn(400, 8)), note.randn(400, 40, 16)
        loss = torch.func.vmap(one)(flat, x).square().mean()
        if number % 2:
            inner = torch.func.grad(lambda it: one(it, x[0]).square().sum())(flat[0].detach())
            rows = torch.func.vmap(torch.func.jacrev(one), (None, 0))(flat[0].detach(), x[:4, :2])
            note(inner, rows)
            _, along = torch.func.jvp(lambda it: one(it, x[0]), (flat[0],), (flat[1],))
            loss = loss + along.square().mean()
        return loss

    note.train(maker, loss_of)


def second_order(note: Notes) -> None:
    """Inner steps by hand, differentiated by where they began."""
    net = nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    net.to(note.device)

    def loss_of(_: int) -> Tensor:
        losses = []
        for _ in range(2):
            x, y = note.randn(ROWS, 16), note.randn(ROWS, 1)
            fast = dict(net.named_parameters())
            for _ in range(2):
                inner = F.mse_loss(torch.func.functional_call(net, fast, (x,)), y)
                found = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                both = zip(fast.items(), found, strict=True)
                fast = {name: it - 0.1 * grad for (name, it), grad in both}
            losses.append(F.mse_loss(torch.func.functional_call(net, fast, (x + 1,)), y))
        return torch.stack(losses).mean()

    note.train(net, loss_of, steps=3)


def queued(note: Notes) -> None:
    """Contrasts with a queue that is written over in place, by an encoder that follows."""
    query, key = stack(3).to(note.device), stack(3).to(note.device)
    key.load_state_dict(query.state_dict())
    queue, at = F.normalize(note.randn(2 * ROWS, WIDTH)), 0
    optimizer = torch.optim.SGD(query.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(4):
        x = note.randn(512, 2, WIDTH)
        q = F.normalize(query(x[:, 0]), dim=1)
        with torch.no_grad():
            for follows, leads in zip(key.parameters(), query.parameters(), strict=True):
                follows.mul_(0.99).add_(leads, alpha=0.01)
            k = F.normalize(key(x[:, 1]), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone().T], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(512, dtype=torch.long, device=note.device))
        queue[at : at + 512] = k
        at = (at + 512) % len(queue)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss)
    note(queue)
    note.model(query)


class Routed(nn.Module):
    """Two of five experts for each token, loads balanced in a buffer."""

    loads: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 5)
        self.experts = nn.ModuleList(Feed() for _ in range(5))
        self.register_buffer("loads", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens are rows."""
        weights, chosen = self.router(x).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            row, place = torch.where(chosen == index)
            self.loads[index] += len(row)
            if index % 2:
                y.index_add_(0, row, expert(x[row]) * weights[row, place, None])
            else:
                given = (expert(x[row]) * weights[row, place, None]).to(y.dtype)
                y = y.scatter_add(0, row[:, None].expand(-1, WIDTH), given)
        return y


def routed(note: Notes) -> None:
    """Experts: how many rows an expert has is known when the router has run."""
    model = nn.ModuleList([Routed(), Feed(), Routed()]).to(note.device)

    def loss_of(_: int) -> Tensor:
        x = note.randn(ROWS, WIDTH)
        for layer in model:
            x = x + layer(x)
        return x.square().mean()

    note.train(model, loss_of)


def sparse(note: Notes) -> None:
    """Tables with sparse gradients and an optimizer of their own; bags; products of sparse."""
    table = nn.Embedding(20_000, WIDTH, sparse=True)
    bag = nn.EmbeddingBag(5000, WIDTH, mode="sum", sparse=True)
    rest = nn.Sequential(stack(2), nn.Linear(WIDTH, 1))
    model = nn.ModuleList([table, bag, rest]).to(note.device)
    tables = torch.optim.SparseAdam([table.weight, bag.weight], lr=1e-3)
    others = torch.optim.Adagrad(rest.parameters())
    for _ in range(4):
        where = torch.stack([note.integers(ROWS, 9000), note.integers(ROWS, 9000)])
        graph = torch.sparse_coo_tensor(where, note.randn(9000), (ROWS, ROWS)).coalesce()
        x = table(note.integers(20_000, ROWS)) + bag(note.integers(5000, ROWS, 3))
        loss = rest(torch.sparse.mm(graph, x) + x).square().mean()
        tables.zero_grad()
        others.zero_grad()
        loss.backward()
        tables.step()
        others.step()
        note(loss, table.weight.grad)
    note.model(model)


class Fourier(nn.Module):
    """Products of frequencies with weights that are complex numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, 8, dtype=torch.cfloat) / width)

    def forward(self, x: Tensor) -> Tensor:
        """Batch, channels, points."""
        seen = torch.fft.rfft(x, norm="ortho")
        low = torch.einsum("bix,iox->box", seen[..., :8], self.weight)
        rest = torch.zeros_like(seen)
        rest[..., :8] = low + low.conj() * seen[..., :8].conj().imag
        back: Tensor = torch.fft.irfft(rest, n=x.shape[-1], norm="ortho") + x
        return F.gelu(back)


def fourier(note: Notes) -> None:
    """Layers in the space of frequencies, conjugates and parts of complex numbers."""
    model = nn.Sequential(*(Fourier(16) for _ in range(4))).to(note.device)

    def loss_of(_: int) -> Tensor:
        found = model(note.randn(256, 16, 64))
        wave = torch.view_as_complex(found.unflatten(-1, (32, 2))) * (1 + 2j)
        return wave.abs().square().mean() + wave.angle().sin().mean() + wave.real.neg().mean()

    note.train(model, loss_of)


def volumes(note: Notes) -> None:
    """Convolutions in three dimensions, channels last, in place, with running means."""
    layers: list[nn.Module] = []
    for inward, outward in ((2, 8), (8, 8), (8, 8)):
        layers += [nn.Conv3d(inward, outward, 3, padding=1), nn.BatchNorm3d(outward)]
        layers += [nn.LeakyReLU(0.1, inplace=True), nn.Dropout3d(0.1)]
    layers += [nn.MaxPool3d(2), nn.ConvTranspose3d(8, 2, 2, 2)]
    model = nn.Sequential(*layers).to(note.device, memory_format=torch.channels_last_3d)

    def loss_of(_: int) -> Tensor:
        x = note.randn(6, 2, 8, 32, 32).to(memory_format=torch.channels_last_3d)
        return F.smooth_l1_loss(model(x), x)

    note.train(model, loss_of)


def masked_images(note: Notes) -> None:
    """Patches that are left out by gathers, put back where they were; depth that is drawn."""
    encoder, decoder = stack(4), stack(2)
    missing, place = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 64, WIDTH))
    model = nn.ModuleList([encoder, decoder, nn.ParameterList([missing, place])]).to(note.device)
    missing, place = model[2]

    def loss_of(_: int) -> Tensor:
        image = note.randn(96, 64, WIDTH)
        order = torch.rand(96, 64).argsort(1).to(note.device)
        kept, back = order[:, :24, None].expand(-1, -1, WIDTH), order.argsort(1)
        x = (image + place).gather(1, kept)
        for layer in encoder:
            alive = (torch.rand(96, 1, 1) > 0.2).to(note.device)
            x = torch.where(alive, layer(x) / 0.8, x) if torch.rand(()) > 0.1 else x
        x = torch.cat([x, missing.expand(96, 40, -1)], 1)
        x = x.gather(1, back[..., None].expand(-1, -1, WIDTH)) + place
        gone = torch.ones(96, 64, device=note.device).scatter(1, order[:, :24], 0.0)
        wrong = (decoder(x) - image).square().mean(-1)
        return (wrong * gone).sum() / gone.sum()

    note.train(model, loss_of)


def actors(note: Notes) -> None:
    """A policy gradient with clipped ratios, advantages by a scan, and three losses in turns."""
    body, head, value = stack(3), nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 1)
    model = nn.ModuleList([body, head, value]).to(note.device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    for _ in range(3):
        with torch.inference_mode():
            seen = note.randn(16, 256, WIDTH)
            hidden = body(seen)
            before = head(hidden).log_softmax(-1)
            done = before.exp().flatten(0, 1).cumsum(-1).sum(-1).round().long() % 5
            worth = value(hidden).squeeze(-1)
        reward, advantage = note.randn(16, 256), torch.zeros(16, 256, device=note.device)
        for t in reversed(range(15)):
            advantage[t] = reward[t] + 0.9 * worth[t + 1] - worth[t] + 0.8 * advantage[t + 1]
        seen, before, worth = seen.clone(), before.clone(), worth.clone()
        for _ in range(2):
            hidden = body(seen)
            chosen = done.clone().view(16, 256, 1)
            ratio = (head(hidden).log_softmax(-1) - before).gather(-1, chosen).squeeze(-1).exp()
            clipped = ratio.clamp(0.8, 1.2) * advantage
            loss = -torch.minimum(ratio * advantage, clipped).mean()
            loss = loss + F.huber_loss(value(hidden).squeeze(-1), worth + advantage)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            note(loss)
    note.model(model)


def numerics(note: Notes) -> None:
    """Factors of matrices, distances, samples of a grid, sorting, sums along, a CTC loss."""
    net = nn.Linear(32, 32).to(note.device)

    def loss_of(_: int) -> Tensor:
        x = net(note.randn(500, 32, 32))
        square = x @ x.mT + 3 * torch.eye(32, device=note.device)
        factor = torch.linalg.cholesky(square)
        loss = torch.linalg.solve_triangular(factor, x, upper=False).square().mean()
        loss = (
            loss + torch.linalg.slogdet(square).logabsdet.mean() + torch.logcumsumexp(x, 1).mean()
        )
        loss = loss + torch.cdist(x[:300], x[:300] + 1).mean() + x.sort(dim=1).values[:, :3].mean()
        grid = x[..., :2].view(500, 8, 4, 2).tanh()
        loss = loss + F.grid_sample(x[:, None], grid, align_corners=False).square().mean()
        steps = x[:64].permute(1, 0, 2).log_softmax(-1)
        labels = note.integers(31, 64, 8) + 1
        whole = torch.full((64,), 32), torch.full((64,), 8)
        return loss + F.ctc_loss(steps, labels, *whole) + F.unfold(x[:, None], 3).square().mean()

    note.train(net, loss_of, steps=4)


PROGRAMS: list[Program] = [
    packed_recurrent,
    state_space,
    translator,
    diffusion,
    penalized,
    hypernetwork,
    second_order,
    queued,
    routed,
    sparse,
    fourier,
    volumes,
    masked_images,
    actors,
    numerics,
]
