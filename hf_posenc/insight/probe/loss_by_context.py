"""How much text a model makes use of: loss of the same last tokens, with more and more text before them.

    length 256                         … context ▏ scored
    length 512         … … … … … … … … … context ▏ scored

The **effective length** is the shortest whose loss is not surely above the lowest: beyond it more text does not help.
Text **hurts from** the first longer length whose loss surely is. Sure means: the mean difference, paired by window, is
more than two of its standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.eval.lm.log_probs import (
    chosen_logits,
    prediction_head,
    suffix_states,
    token_scores,
    unwrapped,
)

SURE = 2.0  # standard errors
EVERY = 7  # the share of tokens that are masked in turn, 1/7, is about BERT's own 15 %


@dataclass(frozen=True)
class Frame:
    """How many tokens a tokenizer puts before and behind every text."""

    front: int
    behind: int


@dataclass(frozen=True)
class LossByContext:
    """Losses of one model.

    Attributes:
        lengths: tokens before and including the last that is scored, ascending.
        losses: nats/token, one row a window, one column a length.
        places: number of tokens read before a token, bins' middles, in the longest text.
        by_place: mean loss of the tokens there.
    """

    lengths: tuple[int, ...]
    losses: tuple[tuple[float, ...], ...]
    places: tuple[int, ...]
    by_place: tuple[float, ...]

    @property
    def means(self) -> list[float]:
        """Mean loss at every length."""
        return [fmean(column) for column in zip(*self.losses, strict=True)]

    def rise(self, here: int, there: int) -> tuple[float, float]:
        """Mean of loss there − loss here over windows, and its standard error; lengths by number."""
        differences = [window[there] - window[here] for window in self.losses]
        if len(differences) < 2:
            return fmean(differences), 0.0
        return fmean(differences), stdev(differences) / len(differences) ** 0.5

    def surely_above(self, here: int, there: int) -> bool:
        """Whether the loss there is above that here."""
        mean, error = self.rise(here, there)
        return mean > SURE * error and mean > 0

    @property
    def best(self) -> int:
        """Number of the length with the lowest mean."""
        return min(range(len(self.lengths)), key=self.means.__getitem__)

    @property
    def effective(self) -> int:
        """The shortest length whose loss is not surely above the lowest."""
        return next(n for i, n in enumerate(self.lengths) if not self.surely_above(self.best, i))

    @property
    def hurts_from(self) -> int | None:
        """The first length beyond the best whose loss is surely above the lowest; None where there is none."""
        later = range(self.best + 1, len(self.lengths))
        return next((self.lengths[i] for i in later if self.surely_above(self.best, i)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        errors = [self.rise(self.best, i)[1] for i in range(len(self.lengths))]
        rows = zip(self.lengths, self.means, errors, strict=True)
        return {
            "effective_length": self.effective, "hurts_from": self.hurts_from, "windows": len(self.losses),
            "loss": [{"length": n, "mean": mean, "stderr_to_best": error} for n, mean, error in rows],
            "by_place": [{"place": p, "mean": m} for p, m in zip(self.places, self.by_place, strict=True)],
        }  # fmt: skip


@torch.no_grad()
def loss_by_context(
    model: nn.Module, texts: Sequence[Tensor], lengths: Sequence[int], scored: int, frame: Frame, mask: int | None
) -> LossByContext:
    """Measure.

    Args:
        model: with a head.
        texts: of the longest length each, ``[1, token]``; shorter ones are their ends in the same frame.
        lengths: ascending.
        scored: tokens at the end, fewer than the shortest length holds.
        frame: how many tokens stand before, and how many behind, every text.
        mask: id of the mask token of a masked model; None for a causal one.
    """
    longest = lengths[-1]
    losses, sums, counts = [], torch.zeros(longest), torch.zeros(longest)
    for text in texts:
        row = []
        for length in lengths:
            short = torch.cat((text[:, : frame.front], text[:, longest - length + frame.front :]), dim=1)
            first = max(1, frame.front) if length == longest else length - frame.behind - scored
            places, found = scores(model, short, first, frame, mask)
            row.append(-float(found[places >= length - frame.behind - scored].mean()))
        sums[places] -= found
        counts[places] += 1
        losses.append(tuple(row))
    return LossByContext(tuple(lengths), tuple(losses), *by_place(sums, counts))


def scores(model: nn.Module, ids: Tensor, first: int, frame: Frame, mask: int | None) -> tuple[Tensor, Tensor]:
    """Places of tokens of ``ids [1, token]``, all from ``first`` on or every seventh, and their log-probabilities."""
    length = ids.shape[1]
    if mask is None:
        states, head = suffix_states(model, ids, length - first + 1)
        return torch.arange(first, length), token_scores(states[0, :-1], ids[0, first:], head)[0].float().cpu()
    inside = torch.arange(max(1, frame.front), length - frame.behind)
    places = inside[(length - inside) % EVERY == EVERY // 2]  # from the end on, so that all lengths hide the same ones
    hidden = ids.clone()
    hidden[0, places] = mask
    chosen = places.to(ids.device)
    return places, token_scores(chosen_logits(model, hidden, chosen)[0], ids[0, chosen])[0].float().cpu()


def by_place(sums: Tensor, counts: Tensor, bins: int = 16) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Means over even bins of places, and the bins' middles."""
    cuts = [round(i * len(sums) / bins) for i in range(bins + 1)]
    kept = [(a, b) for a, b in pairwise(cuts) if float(counts[a:b].sum()) > 0]
    return (
        tuple((a + b) // 2 for a, b in kept),
        tuple(float(sums[a:b].sum() / counts[a:b].sum()) for a, b in kept),
    )


def can_read(model: nn.Module) -> bool:
    """Whether the model has a head that says something about tokens."""
    host = unwrapped(model)
    return host.get_output_embeddings() is not None or prediction_head(host) is not None
