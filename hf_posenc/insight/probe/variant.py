"""A model measured once: as it comes, or with a scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.insight.probe.attention_profile import (
    Profile,
    Tally,
    binned,
    edges,
)
from hf_posenc.insight.probe.attention_rows import chosen_rows
from hf_posenc.insight.probe.capture import attentions_of
from hf_posenc.insight.probe.heads import NEAR, Head
from hf_posenc.insight.probe.loss_by_context import (
    Frame,
    LossByContext,
    can_read,
    loss_by_context,
)
from hf_posenc.insight.probe.position_shuffle import changes

Tell = Callable[[str], None]
LOOKED_AT = 4  # texts whose attention is: weights vary less from text to text than losses do


@dataclass(frozen=True)
class Plan:
    """What is measured, and on what.

    Attributes:
        texts: ``[1, token]`` each, all of one length.
        frame: what the tokenizer puts around a text.
        trained_length: what the weights saw.
        lengths: at which the loss is measured; empty for not at all.
        scored: tokens at the end of every text.
        rows: of each text whose attention is looked at; of the texts, four at most are.
        sinks: tokens at the start that count as such.
        mask: id of the mask token of a masked model.
        seed: of the shuffle.
    """

    texts: Sequence[Tensor]
    frame: Frame
    trained_length: int
    lengths: tuple[int, ...]
    scored: int = 32
    rows: int = 256
    sinks: int = 1
    mask: int | None = None
    seed: int = 0

    @property
    def length(self) -> int:
        """Tokens of a text."""
        return self.texts[0].shape[1]


@dataclass(frozen=True)
class Variant:
    """What was found.

    Attributes:
        label: the scheme, or that there is none.
        length: tokens of a text.
        trained_length: what the weights saw.
        profiles: one a layer.
        direct, total: see `hf_posenc.insight.probe.position_shuffle`, ``[layers, heads]``.
        reading: losses; None of a model without a head.
    """

    label: str
    length: int
    trained_length: int
    profiles: tuple[Profile, ...]
    direct: Tensor
    total: Tensor
    reading: LossByContext | None

    @property
    def heads(self) -> list[Head]:
        """Layer by layer."""
        return [head for layer, profile in enumerate(self.profiles) for head in self._of_layer(layer, profile)]

    def _of_layer(self, layer: int, profile: Profile) -> list[Head]:
        strongest, share = profile.strongest()
        columns = (
            profile.mean_distance, strongest, share, profile.sink, profile.within(0, NEAR),
            profile.within(self.trained_length, self.length), profile.entropy, self.direct[layer], self.total[layer],
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [Head(layer, number, *row) for number, row in enumerate(rows)]

    @property
    def sinks(self) -> list[float]:
        """Weight on the first tokens, the mean over the heads of each layer."""
        return [float(profile.sink.mean()) for profile in self.profiles]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; masses in bins of distances that double."""
        starts = edges(self.length)
        return {
            "label": self.label, "length": self.length, "heads": [head.to_dict() for head in self.heads],
            "sink_by_layer": self.sinks, "bins": starts,
            "mass": [binned(profile, starts).tolist() for profile in self.profiles],
            "reading": None if self.reading is None else self.reading.to_dict(),
        }  # fmt: skip


def measure(model: nn.Module, plan: Plan, label: str, tell: Tell) -> Variant:
    """Measure a model as it is now."""
    causal = bool(attentions_of(model)[0].is_causal)
    rows = chosen_rows(plan.length, plan.rows, causal)
    tallies: dict[int, Tally] = {}

    def take(layer: int, block: slice, weights: Tensor, mixed: Tensor) -> None:
        if layer not in tallies:
            tallies[layer] = Tally(len(weights), plan.length, causal, plan.sinks)
        tallies[layer].add(block, weights)

    found = []
    some = plan.texts[:: -(-len(plan.texts) // LOOKED_AT)]
    for number, text in enumerate(some):
        tell(f"{label}: attention in text {number + 1} of {len(some)}")
        found.append(changes(model, text, rows, take, plan.seed))
    direct, total = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
    reading = None
    if plan.lengths and can_read(model):
        tell(f"{label}: loss at {', '.join(map(str, plan.lengths))} tokens")
        reading = loss_by_context(model, plan.texts, plan.lengths, plan.scored, plan.frame, plan.mask)
    profiles = tuple(tallies[layer].profile() for layer in sorted(tallies))
    return Variant(label, plan.length, plan.trained_length, profiles, direct, total, reading)
