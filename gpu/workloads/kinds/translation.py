"""Sentences translated by packed recurrent networks; a search of several beams every few steps.

Sentences of similar length make a batch, and are packed: each step of a network has those that have
not ended. A search's cache grows by a word at a time, and its rows change places in every step.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kinds.common import Cache, Layer, Run, Step

WORDS = 24_000
"""Of a step, on the longer side. Everything large is in proportion to it."""
HEADS = 8

State = tuple[Tensor, Tensor]


class Recurrent(nn.Module):
    """Words of sentences through an LSTM, packed."""

    def __init__(self, words: int, width: int, layers: int, both_ways: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        each = width // 2 if both_ways else width
        self.lstm = nn.LSTM(
            width, each, layers, batch_first=True, bidirectional=both_ways, dropout=0.1
        )

    def forward(self, ids: Tensor, lengths: list[int], state: State | None) -> tuple[Tensor, State]:
        """States of all words, and the last ones."""
        sizes = torch.tensor(lengths)
        packed = pack_padded_sequence(self.embedding(ids), sizes, True, enforce_sorted=False)
        # A gradient through so many steps would vanish in float16.
        with torch.autocast(ids.device.type, enabled=False):
            said, after = self.lstm(packed, state)
        padded, _ = pad_packed_sequence(said, True)
        return padded, after


class Translator(nn.Module):
    """A recurrent encoder; a recurrent decoder, which attends to itself and to the source."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.source = Recurrent(words, width, layers, both_ways=True)
        self.target = Recurrent(words, width, layers, both_ways=False)
        self.pair = nn.Linear(width, 2 * width)
        self.layer = Layer(width, HEADS, causal=True)
        self.query = nn.Linear(width, width)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def encode(self, ids: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, of shape 2, batch, heads, words, width; and their mask."""
        states, _ = self.source(ids, lengths, None)
        batch, words, width = states.shape
        pair = self.pair(states).view(batch, words, 2, HEADS, width // HEADS)
        ends = torch.tensor(lengths, device=ids.device)[:, None, None, None]
        return pair.permute(2, 0, 3, 1, 4), torch.arange(words, device=ids.device) < ends

    def decode(
        self,
        ids: Tensor,
        lengths: list[int],
        source: tuple[Tensor, Tensor],
        state: State | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, State]:
        """What stands before the head, of every word; and the state behind the last one."""
        x, state = self.target(ids, lengths, state)
        x = self.layer(x, None, cache)
        (key, value), mask = source
        asked = self.query(x).unflatten(2, (HEADS, -1)).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(asked, key, value, mask)
        return x + seen.transpose(1, 2).flatten(2), state


def search(model: Translator, ids: Tensor, lengths: list[int], beams: int) -> list[Tensor]:
    """The best of so many translations of each sentence, longest first, as long as the source."""
    pair, mask = model.encode(ids, lengths)
    pair, mask = pair.repeat_interleave(beams, dim=1), mask.repeat_interleave(beams, dim=0)
    active, cache, state, ended = len(ids), Cache(), None, []
    # All beams of a sentence are alike at first: one of them counts.
    scores = torch.zeros(active, beams, device=ids.device)
    scores[:, 1:] = -torch.inf
    said = torch.zeros(active * beams, 1, dtype=torch.long, device=ids.device)
    text = said
    for position in range(lengths[0]):
        ones = [1] * (active * beams)
        x, state = model.decode(said, ones, (pair, mask), state, cache)
        chances = model.head(x[:, -1]).float().log_softmax(-1)
        together = scores.unsqueeze(2) + chances.view(active, beams, -1)
        scores, place = together.flatten(1).topk(beams)
        first = beams * torch.arange(active, device=ids.device).unsqueeze(1)
        rows = (place // chances.shape[1] + first).flatten()
        said = (place % chances.shape[1]).view(-1, 1)
        text = torch.cat([text.index_select(0, rows), said], dim=1)
        left = sum(length > position + 1 for length in lengths)
        if left < active:
            ended.append(text.view(active, beams, -1)[left:, 0].cpu())
            active, rows = left, rows[: left * beams]
            said, text, scores = said[: left * beams], text[: left * beams], scores[:left]
            pair, mask = pair[:, : left * beams].contiguous(), mask[: left * beams].contiguous()
        state = (state[0].index_select(1, rows), state[1].index_select(1, rows))
        cache.select(rows)
    return ended


def buckets(run: Run, budget: int) -> Iterator[list[tuple[int, int]]]:
    """Batches without end: the lengths of their sentences, longest first, and of what they say."""
    longest = run.width(300, 12)
    while True:
        pool = []
        for _ in range(20_000):
            length = min(longest, 1 + int(run.draw.lognormvariate(run.width(33, 8) / 10, 0.7)))
            pool.append((length, max(1, round(length * run.draw.uniform(0.8, 1.25)))))
        batches: list[list[tuple[int, int]]] = [[]]
        for pair in sorted(pool, reverse=True):
            if batches[-1] and batches[-1][0][0] * (len(batches[-1]) + 1) > budget:
                batches.append([])
            batches[-1].append(pair)
        run.draw.shuffle(batches)
        yield from batches


def build(run: Run) -> Step:
    """Three layers each way of width 1024, 32,768 words, mixed precision; 24,000 words a step."""
    words = run.width(32768, 50)
    with run.device:
        model = Translator(words, run.width(1024, 32), run.width(3, 2)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
    batches = buckets(run, run.batch(WORDS))

    def sentences(lengths: list[int]) -> Tensor:
        return torch.randint(1, words, (len(lengths), max(lengths)), device=run.device)

    @torch.no_grad()
    def evaluate() -> None:
        model.eval()
        for _ in range(run.width(3, 1)):
            lengths = [source for source, _ in next(batches)[: run.draw.randint(32, 128)]]
            with run.autocast():
                search(model, sentences(lengths), lengths, beams=run.draw.randint(3, 6))
        model.train()

    def step(number: int) -> Tensor:
        sources, targets = (list(side) for side in zip(*next(batches), strict=True))
        ids = sentences(targets)
        # A word is said when those before it are known.
        before = functional.pad(ids, (1, -1))
        ends = torch.tensor(targets, device=run.device).unsqueeze(1)
        real = torch.arange(ids.shape[1], device=run.device) < ends
        with run.autocast():
            x, _ = model.decode(before, targets, model.encode(sentences(sources), sources))
            logits = model.head(x[real])
        loss = functional.cross_entropy(logits.float(), ids[real], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if number % run.width(10, 2) == run.width(9, 1):
            evaluate()
        return loss.detach()

    return step
