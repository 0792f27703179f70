"""Reinforcement learning of a language model: answers are generated, then learnt from.

The cache of keys and values grows by a token at a time, and shrinks when answers end. A frozen
reference model stands beside the policy.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kinds.common import Cache, Layer, Run, Step

EPOCHS = 2
PARTS = 2


class Policy(nn.Module):
    """A causal language model that also says what it expects to earn."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, 8, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.value = nn.Linear(width, 1)

    def forward(self, ids: Tensor, caches: Sequence[Cache | None]) -> tuple[Tensor, Tensor]:
        """Logits and values of every token."""
        x = self.embedding(ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, None, cache)
        x = self.norm(x)
        return self.head(x), self.value(x).squeeze(-1)

    def likelihood(self, ids: Tensor, prompt: int) -> tuple[Tensor, Tensor]:
        """Of the answers behind the prompts: each token's log-probability, and values."""
        logits, values = self(ids, [None] * len(self.layers))
        chances = logits[:, prompt - 1 : -1].float().log_softmax(-1)
        picked = chances.gather(-1, ids[:, prompt:].unsqueeze(-1)).squeeze(-1)
        return picked, values[:, prompt - 1 : -1].float()


def generate(model: Policy, prompts: Tensor, lengths: list[int]) -> Tensor:
    """Answers of these lengths to the prompts, longest first; what is behind their ends is zero."""
    caches = [Cache() for _ in model.layers]
    answers = torch.zeros(len(prompts), lengths[0], dtype=torch.long, device=prompts.device)
    said, active = prompts, len(prompts)
    for position in range(lengths[0]):
        logits, _ = model(said, caches)
        said = torch.multinomial(logits[:, -1].float().softmax(-1), 1)
        answers[:active, position] = said.squeeze(1)
        left = sum(length > position + 1 for length in lengths)
        # Copying the cache pays off only when some more have ended.
        if left and left <= active - max(1, len(prompts) // 8):
            rows = torch.arange(left, device=prompts.device)
            for cache in caches:
                cache.select(rows)
            said, active = said[:left], left
    return answers


def build(run: Run) -> Step:
    """117 million parameters, mixed precision; 192 answers a step, two epochs over them."""
    words = run.width(16384, 100)
    with run.device:
        policy = Policy(run.width(1024, 32), run.width(8, 2), words).train()
    reference = copy.deepcopy(policy).to(torch.bfloat16).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)

    def learn(ids: Tensor, prompt: int, old: Tensor, gains: Tensor, mask: Tensor) -> Tensor:
        with run.autocast():
            now, values = policy.likelihood(ids, prompt)
        ratio = (now - old).exp()
        advantage = gains - values.detach()
        bound = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        # Of the words that were said; those behind an answer's end do not count.
        each = ((values - gains).square() * 0.5 - bound) * mask
        loss = each.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def step(number: int) -> Tensor:
        samples = run.batch(192)
        prompt = run.draw.randint(4, 8) if run.tiny else 8 * run.draw.randint(4, 16)
        most = run.draw.randint(4, 12) if run.tiny else run.draw.randint(32, 160)
        lengths = sorted((run.draw.randint(1, most) for _ in range(samples)), reverse=True)
        prompts = torch.randint(0, words, (samples, prompt), device=run.device)
        with torch.no_grad(), run.autocast():
            answers = generate(policy, prompts, lengths)
            ids = torch.cat([prompts, answers], dim=1)
            chunks = ids.split(max(1, samples // 4))
            old = torch.cat([policy.likelihood(part, prompt)[0] for part in chunks])
            known = torch.cat([reference.likelihood(part, prompt)[0] for part in chunks])
        ends = torch.tensor(lengths, device=run.device).unsqueeze(1)
        mask = torch.arange(lengths[0], device=run.device) < ends
        # What an answer earns: how many of its words are even, less its way from the reference.
        earned = (answers % 2 == 0).float() - 0.1 * (old - known)
        gains = (earned * mask).flip(1).cumsum(1).flip(1) / lengths[0]
        loss = torch.zeros((), device=run.device)
        for _ in range(EPOCHS):
            order = torch.randperm(samples, device=run.device)
            for rows in order.chunk(PARTS):
                loss = learn(ids[rows], prompt, old[rows], gains[rows], mask[rows])
        return loss

    return step
