"""Used length: cross-entropy loss (nats/token) of the same last tokens at increasing context lengths.

    length 256                         … context ▏ scored
    length 512         … … … … … … … … … context ▏ scored

The **used length** is the shortest whose loss is not significantly above the lowest: more context does not help.
Context **hurts from** the first longer length whose loss is significantly higher. Significant means that the mean
difference, paired by window, exceeds two of its standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.eval.lm.log_probs import suffix_states, token_scores

SIGNIFICANT = 2.0  # standard errors
FEWEST = 8  # texts: with fewer, a standard error is itself too uncertain to be doubled and believed


@dataclass(frozen=True)
class SpecialTokenCounts:
    """Numbers of special tokens that a tokenizer adds before and after a text."""

    before: int
    after: int


@dataclass(frozen=True)
class LossByContext:
    """Losses of one model by context length.

    Attributes:
        lengths: context lengths in tokens, ascending; the scored tokens are the last ones.
        losses: nats/token, one row per window, one column per length.
    """

    lengths: tuple[int, ...]
    losses: tuple[tuple[float, ...], ...]

    @property
    def means(self) -> list[float]:
        """Mean loss at every length, nats/token."""
        return [fmean(column) for column in zip(*self.losses, strict=True)]

    def difference(self, first: int, second: int) -> tuple[float, float]:
        """Mean over windows of loss at the second length − loss at the first, and its standard error."""
        differences = [window[second] - window[first] for window in self.losses]
        if len(differences) < 2:
            return fmean(differences), 0.0
        return fmean(differences), stdev(differences) / len(differences) ** 0.5

    def is_worse(self, first: int, second: int) -> bool:
        """Whether the loss at the second length is significantly above that at the first."""
        mean, error = self.difference(first, second)
        return mean > SIGNIFICANT * error and mean > 0

    @property
    def best(self) -> int:
        """Index of the length with the lowest mean loss."""
        return min(range(len(self.lengths)), key=self.means.__getitem__)

    @property
    def used_length(self) -> int:
        """Used length: the shortest whose loss is not significantly above the lowest, in tokens."""
        return next(n for i, n in enumerate(self.lengths) if not self.is_worse(self.best, i))

    @property
    def hurts_from(self) -> int | None:
        """The first length beyond the best whose loss is significantly above the lowest; None where there is none."""
        later = range(self.best + 1, len(self.lengths))
        return next((self.lengths[i] for i in later if self.is_worse(self.best, i)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        errors = [self.difference(self.best, i)[1] for i in range(len(self.lengths))]
        rows = zip(self.lengths, self.means, errors, strict=True)
        return {
            "used_length": self.used_length, "hurts_from": self.hurts_from, "windows": len(self.losses),
            "loss": [{"length": n, "mean": mean, "stderr_to_best": error} for n, mean, error in rows],
        }  # fmt: skip


@torch.no_grad()
def loss_by_context(
    model: nn.Module,
    texts: Sequence[Tensor],
    lengths: Sequence[int],
    scored: int,
    special: SpecialTokenCounts,
) -> LossByContext:
    """Measure the loss of the last tokens of each text at each context length.

    Args:
        model: causal, with a language-modelling head.
        texts: ``[1, token]`` each, of the longest length; shorter contexts are cut from their front.
        lengths: context lengths in tokens, ascending.
        scored: tokens at the end of every text, fewer than the shortest length.
        special: numbers of special tokens around every text.
    """
    longest = lengths[-1]
    losses = []
    for text in texts:
        row = []
        for length in lengths:
            short = torch.cat((text[:, : special.before], text[:, longest - length + special.before :]), dim=1)
            found = scores(model, short, length - special.after - scored)
            row.append(-float(found.mean()))
        losses.append(tuple(row))
    return LossByContext(tuple(lengths), tuple(losses))


def scores(model: nn.Module, ids: Tensor, first: int) -> Tensor:
    """Log-probabilities of the tokens of ``ids [1, token]`` from ``first`` on, nats."""
    states, head = suffix_states(model, ids, ids.shape[1] - first + 1)
    return token_scores(states[0, :-1], ids[0, first:], head)[0].float().cpu()
