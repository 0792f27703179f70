"""A generator against a critic whose gradient is held near one: backward through backward.

The critic learns in every step, the generator in some.
"""

import itertools

import torch
from torch import Tensor, nn

from kinds.common import Run, Step

NOISE = 128


class Block(nn.Module):
    """Two convolutions beside a path of their own, then other sides."""

    def __init__(self, inward: int, outward: int, resize: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LeakyReLU(0.2),
            nn.Conv2d(inward, outward, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(outward, outward, 3, padding=1),
        )
        self.beside = nn.Conv2d(inward, outward, 1)
        self.resize = resize

    def forward(self, x: Tensor) -> Tensor:
        """Other sides, another number of channels."""
        after: Tensor = self.resize(self.beside(x) + self.inner(x))
        return after


class Critic(nn.Module):
    """A number for each image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width, 4 * width]
        pairs = itertools.pairwise(widths)
        self.inward = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(a, b, nn.AvgPool2d(2)) for a, b in pairs))
        self.out = nn.Linear(widths[-1], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Higher for those that look real."""
        score: Tensor = self.out(self.blocks(self.inward(images)).mean((2, 3)))
        return score


class Generator(nn.Module):
    """An image from noise, of 16 times the sides it starts with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [4 * width, 4 * width, 2 * width, width, width]
        pairs = itertools.pairwise(widths)
        self.inward = nn.Linear(NOISE, widths[0])
        self.blocks = nn.Sequential(*(Block(a, b, nn.Upsample(scale_factor=2)) for a, b in pairs))
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, noise: Tensor, side: int) -> Tensor:
        """Images of this side, a multiple of 16."""
        start = self.inward(noise).view(len(noise), -1, 1, 1).expand(-1, -1, side // 16, side // 16)
        image: Tensor = self.out(self.blocks(start)).tanh()
        return image


def build(run: Run) -> Step:
    """64 images a step, 64 to 144 to a side; the generator learns in each second to sixth step."""
    with run.device:
        generator, critic = Generator(run.width(96, 8)), Critic(run.width(96, 8))
    generating = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    judging = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    every = run.width(run.draw.randint(2, 6), 2)

    def noise(samples: int) -> Tensor:
        return torch.randn(samples, NOISE, device=run.device)

    def judge(real: Tensor) -> Tensor:
        side, samples = real.shape[2], len(real)
        with torch.no_grad():
            made = generator(noise(samples), side)
        share = torch.rand(samples, 1, 1, 1, device=run.device)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss: Tensor = critic(made).mean() - critic(real).mean() + 10 * penalty
        judging.zero_grad()
        loss.backward()
        judging.step()
        return loss.detach()

    def generate(samples: int, side: int) -> None:
        critic.requires_grad_(False)
        loss = -critic(generator(noise(samples), side)).mean()
        generating.zero_grad()
        loss.backward()
        generating.step()
        critic.requires_grad_(True)

    def step(number: int) -> Tensor:
        side = 16 * run.draw.randint(*((1, 2) if run.tiny else (4, 9)))
        samples = run.batch(64)
        loss = judge(torch.rand(samples, 3, side, side, device=run.device) * 2 - 1)
        if number % every == every - 1:
            generate(samples, side)
        return loss

    return step
