"""A radiance field: rays are sampled where a grid says that space is not empty.

How many samples there are is known only when the grid has been asked. As space empties a batch has
more rays, so that it has about as many samples. Every few steps the grid is brought up to date, at
more and then at fewer points, and now and then an image is rendered, in parts.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Run, Step

SAMPLES = 10_000_000
"""Of a step, about. Everything large is in proportion to it."""
FEATURES = 4
LONGEST = 3**0.5
PRIMES = (1, 2_654_435_761, 805_459_861)


class Field(nn.Module):
    """Density and colour of points in a cube of side one: hashed grids, then perceptrons."""

    corners: Tensor
    primes: Tensor

    def __init__(self, levels: int, entries: int, width: int) -> None:
        super().__init__()
        self.sides = [round(16 * 1.6**level) for level in range(levels)]
        self.entries = entries
        self.tables = nn.ModuleList(nn.Embedding(entries, FEATURES) for _ in self.sides)
        for weight in self.tables.parameters():
            nn.init.uniform_(weight, -1e-4, 1e-4)
        self.body = nn.Sequential(
            nn.Linear(levels * FEATURES, width), nn.ReLU(), nn.Linear(width, 16)
        )
        self.seen = nn.Sequential(
            nn.Linear(16 + 3, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 3),
        )
        every = torch.tensor(list(itertools.product((0, 1), repeat=3)))
        self.register_buffer("corners", every, persistent=False)
        self.register_buffer("primes", torch.tensor(PRIMES), persistent=False)

    def features(self, points: Tensor) -> Tensor:
        """What the grids say, between the eight corners around each point."""
        found = []
        for side, table in zip(self.sides, self.tables, strict=True):
            low = (points * side).floor()
            share = (points * side - low).unsqueeze(1)
            mixed = (low.long().unsqueeze(1) + self.corners) * self.primes
            first, second, third = mixed.unbind(-1)
            rows = (first ^ second ^ third) % self.entries
            weights = torch.where(self.corners > 0, share, 1 - share).prod(-1)
            found.append((table(rows) * weights.unsqueeze(-1)).sum(1))
        return torch.cat(found, dim=1)

    def density(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Of each point; and what else its colour depends on."""
        inner = self.body(self.features(points))
        return (inner[:, 0].float() + 1).clamp(max=9.0).exp(), inner

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Densities and colours."""
        density, inner = self.density(points)
        return density, self.seen(torch.cat([inner, directions], dim=1)).float().sigmoid()


class Occupied:
    """Which cells of the cube are not empty, as far as is known."""

    def __init__(self, run: Run, side: int, length: float) -> None:
        self.side = side
        # A hundredth of the light stays in a sample of this density.
        self.threshold = 0.01 / length
        self.density = torch.full((side**3,), 2 * self.threshold, device=run.device)
        self.updates = 0

    def least(self) -> Tensor:
        """What a cell that counts as occupied has more of. Never are all of them empty."""
        return (0.7 * self.density.mean()).clamp(max=self.threshold)

    def find(self, points: Tensor) -> Tensor:
        """Places of the points that are in the cube and not in empty space."""
        inside = ((points >= 0) & (points < 1)).all(-1)
        first, second, third = (points.clamp(0, 0.999) * self.side).long().unbind(-1)
        cells = (first * self.side + second) * self.side + third
        return (inside & (self.density[cells] > self.least())).nonzero().squeeze(1)

    @torch.no_grad()
    def update(self, run: Run, field: Field, part: int) -> None:
        """Asks the field: everywhere at first, then where something is and at some places more."""
        every = len(self.density)
        cells = torch.arange(every, device=run.device)
        if self.updates >= 3:
            known = (self.density > self.least()).nonzero().squeeze(1)
            more = torch.randint(0, every, (every // 4,), device=run.device)
            cells = torch.cat([known, more]).unique()
        self.updates += 1
        self.density *= 0.7
        for some in cells.split(part):
            where = torch.stack(
                [some // self.side**2, some // self.side % self.side, some % self.side], dim=1
            )
            with run.autocast():
                seen, _ = field.density((where + torch.rand_like(where.float())) / self.side)
            self.density[some] = torch.maximum(self.density[some], seen)


class Scene:
    """A few balls, each of a colour, and rays that look at them."""

    def __init__(self, run: Run) -> None:
        self.device = run.device
        balls = torch.rand(run.draw.randint(3, 9), 7, device=run.device)
        self.middles, self.colours = balls[:, :3], balls[:, 4:]
        self.radii = 0.1 + 0.15 * balls[:, 3]

    def rays(self, count: int) -> tuple[Tensor, Tensor]:
        """Where they begin, outside the cube or nearly, and where they go."""
        directions = functional.normalize(torch.randn(count, 3, device=self.device), dim=1)
        through = 0.2 + 0.6 * torch.rand(count, 3, device=self.device)
        return through - directions * LONGEST / 2, directions

    def look(self, origins: Tensor, directions: Tensor, behind: Tensor) -> Tensor:
        """The colour of each ray."""
        away = origins.unsqueeze(1) - self.middles
        along = (away * directions.unsqueeze(1)).sum(-1)
        inside = along.square() - away.square().sum(-1) + self.radii.square()
        hits = torch.where(inside > 0, -along - inside.clamp_min(0).sqrt(), torch.inf)
        distance, nearest = hits.min(1)
        return torch.where(distance.isfinite().unsqueeze(1), self.colours[nearest], behind)


def build(run: Run) -> Step:
    """Eight tables of two million entries; 10 million samples a step, of up to 250,000 rays."""
    steps = run.width(256, 16)
    length = LONGEST / steps
    with run.device:
        field = Field(run.width(8, 2), run.width(1 << 21, 1 << 10), run.width(64, 16))
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2, betas=(0.9, 0.99), eps=1e-15)
    occupied = Occupied(run, run.width(128, 8), length)
    scene = Scene(run)
    wanted = run.batch(run.width(SAMPLES, 50_000))
    most = max(16, wanted // run.width(40, 12))
    rays = max(16, min(most, wanted // steps))

    def render(origins: Tensor, directions: Tensor, behind: Tensor) -> tuple[Tensor, int]:
        count = len(origins)
        shift = torch.rand(count, 1, device=run.device)
        along = (torch.arange(steps, device=run.device) + shift) * length
        points = origins.unsqueeze(1) + along.unsqueeze(2) * directions.unsqueeze(1)
        points = points.flatten(0, 1)
        kept = occupied.find(points)
        ray = kept // steps
        with run.autocast():
            density, colour = field(points[kept], directions[ray])
        empty = torch.zeros(count * steps, device=run.device)
        depth = empty.index_copy(0, kept, density * length).view(count, steps)
        weights = (1 - (-depth).exp()) * (depth - depth.cumsum(1)).exp()
        lit = colour * weights.flatten().index_select(0, kept).unsqueeze(1)
        shown = torch.zeros(count, 3, device=run.device).index_add(0, ray, lit)
        return shown + (1 - weights.sum(1, keepdim=True)) * behind, len(kept)

    @torch.no_grad()
    def picture(side: int) -> Tensor:
        behind, part = torch.ones(1, 3, device=run.device), max(16, most // 4)
        origins, directions = (it.split(part) for it in scene.rays(side * side))
        pairs = zip(origins, directions, strict=True)
        return torch.cat([render(*pair, behind)[0].cpu() for pair in pairs])

    def step(number: int) -> Tensor:
        nonlocal rays
        looks = scene.rays(rays)
        # Behind the scene is another colour for every ray: what is empty must be transparent.
        behind = torch.rand(rays, 3, device=run.device)
        shown, samples = render(*looks, behind)
        loss = functional.mse_loss(shown, scene.look(*looks, behind))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rays = min(most, max(16, rays * wanted // max(1, samples)))
        if number % run.width(4, 2) == run.width(3, 1):
            occupied.update(run, field, most)
        if number % run.width(20, 2) == run.width(19, 1):
            picture(run.width(16 * run.draw.randint(20, 40), 8))
        return loss.detach()

    return step
