"""Two models trained in turns: an autoencoder of images, and a denoiser of what it makes of them.

A few steps of one follow a few of the other. They differ in size, in precision and in batch, and
the one that does not learn keeps its parameters and its optimizer's state.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Layer, Run, Step

LATENT = 16


class Residual(nn.Module):
    """Two convolutions beside a path of their own."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.GroupNorm(8, inward),
            nn.SiLU(),
            nn.Conv2d(inward, outward, 3, padding=1),
            nn.GroupNorm(8, outward),
            nn.SiLU(),
            nn.Conv2d(outward, outward, 3, padding=1),
        )
        self.beside = nn.Conv2d(inward, outward, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Another number of channels, the same sides."""
        after: Tensor = self.beside(x) + self.inner(x)
        return after


def autoencoder(width: int) -> tuple[nn.Module, nn.Module]:
    """An encoder to an eighth of the sides, and its decoder."""
    widths = [width, width, 2 * width, 4 * width]
    down: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    up: list[nn.Module] = [nn.Conv2d(LATENT, widths[-1], 3, padding=1)]
    for inward, outward in itertools.pairwise(widths):
        down += [Residual(inward, outward), nn.Conv2d(outward, outward, 4, stride=2, padding=1)]
    for inward, outward in itertools.pairwise(reversed(widths)):
        up += [nn.Upsample(scale_factor=2), Residual(inward, outward)]
    down += [nn.Conv2d(widths[-1], LATENT, 3, padding=1)]
    up += [nn.Conv2d(width, 3, 3, padding=1)]
    return nn.Sequential(*down), nn.Sequential(*up)


class Denoiser(nn.Module):
    """A transformer over patches of two by two."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.inward = nn.Conv2d(LATENT, width, 2, stride=2)
        self.time = nn.Linear(1, width)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(layers))
        self.out = nn.Linear(width, 4 * LATENT)

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        """The noise in what is noisy to this level."""
        x = self.inward(noisy)
        rows, columns = x.shape[2:]
        x = x.flatten(2).transpose(1, 2) + self.time(level.view(-1, 1)).unsqueeze(1)
        for layer in self.layers:
            x = layer(x)
        shares = self.out(x).transpose(1, 2).reshape(len(x), 4 * LATENT, rows, columns)
        return functional.pixel_shuffle(shares, 2)


def build(run: Run) -> Step:
    """Autoencoder in 32 bits with 32 images a step, denoiser of 200 million in mixed precision."""
    with run.device:
        encoder, decoder = autoencoder(run.width(64, 8))
        denoiser = Denoiser(run.width(1024, 32), run.width(16, 2)).train()
    both = nn.ModuleList([encoder, decoder])
    first = torch.optim.Adam(both.parameters(), lr=1e-4)
    second = torch.optim.AdamW(denoiser.parameters(), lr=1e-4)
    # Which of them learns in a step: drawn now, as steps are told only their number.
    turns: list[bool] = []
    shortest, longest = (1, 1) if run.tiny else (3, 7)
    for denoising in itertools.cycle([False, True]):
        turns += [denoising] * run.draw.randint(shortest, longest)
        if len(turns) >= run.steps:
            break

    def images(samples: float) -> Tensor:
        # Landscapes and portraits of about the same area.
        unit = run.width(32, 16)
        rows, columns = run.draw.choice([(8, 8), (7, 9), (9, 7), (6, 10), (10, 6), (6, 8), (8, 6)])
        if run.tiny:
            rows, columns = 1 + rows % 2, 1 + columns % 2
        return torch.randn(run.batch(samples), 3, unit * rows, unit * columns, device=run.device)

    def encode_and_decode() -> Tensor:
        batch = images(32)
        loss = functional.mse_loss(decoder(encoder(batch)), batch)
        first.zero_grad()
        loss.backward()
        first.step()
        return loss.detach()

    def denoise() -> Tensor:
        with torch.no_grad():
            latent = encoder(images(80))
        level = torch.rand(len(latent), device=run.device)
        share = level.view(-1, 1, 1, 1)
        noise = torch.randn_like(latent)
        with run.autocast():
            guess = denoiser((1 - share) * latent + share * noise, level)
        loss = functional.mse_loss(guess.float(), noise)
        second.zero_grad()
        loss.backward()
        second.step()
        return loss.detach()

    def step(number: int) -> Tensor:
        return denoise() if turns[number] else encode_and_decode()

    return step
