"""Probe one variant of a model, unpatched or patched with a scheme: where its heads attend, and what text it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.progress import StepCallback
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.insight.probe.attention_profile import Profile, Tally, binned, edges
from hf_posenc.insight.probe.loss_by_context import LossByContext, SpecialTokenCounts, loss_by_context
from hf_posenc.insight.probe.position_shuffle import changes, chosen_rows
from hf_posenc.patching.layer_schemes import is_causal

MOST = 0.5  # share of a row's attention weight, averaged over rows
NEAR = 16  # tokens
NEIGHBOURS = {0: "itself", 1: "previous token", -1: "next token"}
USES = 0.1  # relative change of its output under shuffled positions
ATTENTION_TEXTS = 4  # attention weights vary less between texts than losses do


@dataclass(frozen=True)
class Head:
    """One attention head, averaged over the measured rows; weights are shares of a row, 0 … 1.

    Attributes:
        layer, head: indices.
        mean_distance: mean attention distance, tokens.
        strongest: the distance with the most weight, tokens; negative for keys after the query.
        share: weight at that distance.
        sink: weight on the first token.
        near: weight at distances up to 16 tokens.
        beyond: weight at distances of the trained length and more.
        direct, total: relative change of its output under shuffled positions; see
            `hf_posenc.insight.probe.position_shuffle`.
    """

    layer: int
    head: int
    mean_distance: float
    strongest: int
    share: float
    sink: float
    near: float
    beyond: float
    direct: float
    total: float

    @property
    def kind(self) -> str:
        """What most of its weight is on: itself, previous token, a distance, first token, near or spread."""
        if self.share > MOST:
            return NEIGHBOURS.get(self.strongest, f"distance {self.strongest}")
        if self.sink > MOST:
            return "first token"
        return "near" if self.near > MOST else "spread"

    @property
    def uses_position(self) -> bool:
        """Whether shuffled positions change its output by a tenth or more."""
        return max(self.direct, self.total) >= USES

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "kind": self.kind, "uses_position": self.uses_position}


@dataclass(frozen=True)
class ProbePlan:
    """Texts and settings of a probe.

    Attributes:
        texts: ``[1, token]`` each, all of one length.
        special: numbers of special tokens around a text.
        lengths: context lengths at which the loss is measured, in tokens; empty to skip the loss.
        rows: attention rows measured per text, in at most `ATTENTION_TEXTS` texts.
    """

    texts: Sequence[Tensor]
    special: SpecialTokenCounts
    trained_length: int
    lengths: tuple[int, ...]
    scored: int = 32
    rows: int = 256
    seed: int = 0

    @property
    def length(self) -> int:
        """Tokens per text."""
        return self.texts[0].shape[1]


@dataclass(frozen=True)
class Variant:
    """Measurements of one variant of a model.

    Attributes:
        label: name of the scheme, or ``unpatched``.
        length: tokens per text.
        trained_length: pre-training context length in tokens.
        profiles: attention mass by distance, one profile per layer.
        direct, total: effect of shuffled positions, ``[layers, heads]``; see
            `hf_posenc.insight.probe.position_shuffle`.
        loss: loss by context length; None for an encoder, and for a model without a language-modelling head.
    """

    label: str
    length: int
    trained_length: int
    profiles: tuple[Profile, ...]
    direct: Tensor
    total: Tensor
    loss: LossByContext | None

    @property
    def heads(self) -> list[Head]:
        """All heads, layer by layer."""
        return [head for layer, profile in enumerate(self.profiles) for head in self._of_layer(layer, profile)]

    def _of_layer(self, layer: int, profile: Profile) -> list[Head]:
        strongest, share = profile.strongest()
        columns = (
            profile.mean_distance, strongest, share, profile.sink, profile.within(0, NEAR),
            profile.within(self.trained_length, self.length), self.direct[layer], self.total[layer],
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [Head(layer, number, *row) for number, row in enumerate(rows)]

    @property
    def sinks(self) -> list[float]:
        """Attention weight on the first token, averaged over the heads of each layer."""
        return [float(profile.sink.mean()) for profile in self.profiles]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; attention mass in bins of doubling distance."""
        starts = edges(self.length)
        return {
            "label": self.label, "length": self.length, "heads": [head.to_dict() for head in self.heads],
            "sink_by_layer": self.sinks, "distance_bins": starts,
            "attention_mass": [binned(profile, starts).tolist() for profile in self.profiles],
            "loss_by_context": None if self.loss is None else self.loss.to_dict(),
        }  # fmt: skip


def measure(model: nn.Module, plan: ProbePlan, label: str, progress: StepCallback) -> Variant:
    """Measure a model in its current state."""
    causal = is_causal(model)
    rows = chosen_rows(plan.length, plan.rows, causal)
    tallies: dict[int, Tally] = {}

    def add_weights(layer: int, block: slice, weights: Tensor, mixed: Tensor) -> None:
        if layer not in tallies:
            tallies[layer] = Tally(len(weights), plan.length, causal)
        tallies[layer].add(block, weights)

    found = []
    texts = plan.texts[:: -(-len(plan.texts) // ATTENTION_TEXTS)]
    for number, text in enumerate(texts):
        progress(f"{label}: attention in text {number + 1} of {len(texts)}")
        found.append(changes(model, text, rows, add_weights, plan.seed))
    direct, total = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
    loss = None
    if plan.lengths and causal and unwrapped(model).get_output_embeddings() is not None:
        progress(f"{label}: loss at {', '.join(map(str, plan.lengths))} tokens")
        loss = loss_by_context(model, plan.texts, plan.lengths, plan.scored, plan.special)
    profiles = tuple(tallies[layer].profile() for layer in sorted(tallies))
    return Variant(label, plan.length, plan.trained_length, profiles, direct, total, loss)
