"""Probe one variant of a model, unpatched or patched with a scheme: where its heads attend, and which use position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.progress import StepCallback
from hf_posenc.insight.probe.attention_profile import Profile, Tally, binned, edges
from hf_posenc.insight.probe.position_shuffle import changes, chosen_rows
from hf_posenc.patching.layer_schemes import is_causal

MOST = 0.5  # share of a row's attention weight, averaged over rows
NEAR = 16  # tokens
NEIGHBOURS = {0: "itself", 1: "previous token", -1: "next token"}
USES = 0.1  # relative change of a head's output under shuffled positions


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
        direct, total: relative change of the head's output under shuffled positions; see
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
        """Name of what gets most of the weight: itself, previous token, a distance, first token, near or spread."""
        if self.share > MOST:
            return NEIGHBOURS.get(self.strongest, f"distance {self.strongest}")
        if self.sink > MOST:
            return "first token"
        return "near" if self.near > MOST else "spread"

    @property
    def uses_position(self) -> bool:
        """Whether shuffled positions change the head's output by a tenth or more."""
        return max(self.direct, self.total) >= USES

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "kind": self.kind, "uses_position": self.uses_position}


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
    """

    label: str
    length: int
    trained_length: int
    profiles: tuple[Profile, ...]
    direct: Tensor
    total: Tensor

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
        }  # fmt: skip


def measure(
    model: nn.Module,
    texts: Sequence[Tensor],
    label: str,
    progress: StepCallback,
    *,
    trained_length: int,
    rows: int,
    seed: int,
) -> Variant:
    """Measure a model in its current state on texts of one length, ``[1, token]`` each."""
    causal, length = is_causal(model), texts[0].shape[1]
    blocks = chosen_rows(length, rows, causal)
    tallies: dict[int, Tally] = {}

    def add_weights(layer: int, block: slice, weights: Tensor, mixed: Tensor) -> None:
        if layer not in tallies:
            tallies[layer] = Tally(len(weights), length, causal)
        tallies[layer].add(block, weights)

    changes_by_text = []
    for number, text in enumerate(texts, start=1):
        progress(f"{label}: attention in text {number} of {len(texts)}")
        changes_by_text.append(changes(model, text, blocks, add_weights, seed))
    direct, total = (torch.stack(per_text).mean(0) for per_text in zip(*changes_by_text, strict=True))
    profiles = tuple(tallies[layer].profile() for layer in sorted(tallies))
    return Variant(label, length, trained_length, profiles, direct, total)
