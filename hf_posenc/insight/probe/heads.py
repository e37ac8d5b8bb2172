"""Summary of one attention head: where it attends, and how much it uses position."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MOST = 0.5  # share of a row's attention weight, averaged over rows
NEAR = 16  # tokens
NEIGHBOURS = {0: "itself", 1: "previous token", -1: "next token"}
USES = 0.1  # relative change of its output under shuffled positions


def first_tokens(count: int) -> str:
    """Name the tokens at the start that count as attention sink: ``first 4 tokens``."""
    return "first token" if count == 1 else f"first {count:,} tokens"


@dataclass(frozen=True)
class Head:
    """One attention head, averaged over the measured rows; weights are shares of a row, 0 … 1.

    Attributes:
        layer, head: indices.
        mean_distance: mean attention distance, tokens.
        strongest: the distance with the most weight, tokens; negative for keys after the query.
        share: weight at that distance.
        sink: weight on the first tokens.
        near: weight at distances up to 16 tokens.
        beyond: weight at distances of the trained length and more.
        entropy: entropy of the attention weights, nats; e^entropy is the effective number of keys.
        direct, total: relative change of its output under shuffled positions; see
            `hf_posenc.insight.probe.position_shuffle`.
        sink_tokens: number of first tokens.
    """

    layer: int
    head: int
    mean_distance: float
    strongest: int
    share: float
    sink: float
    near: float
    beyond: float
    entropy: float
    direct: float
    total: float
    sink_tokens: int = 1

    @property
    def kind(self) -> str:
        """What most of its weight is on: itself, previous token, a distance, first token, near or spread."""
        if self.share > MOST:
            return NEIGHBOURS.get(self.strongest, f"distance {self.strongest}")
        if self.sink > MOST:
            return first_tokens(self.sink_tokens)
        return "near" if self.near > MOST else "spread"

    @property
    def uses_position(self) -> bool:
        """Whether shuffled positions change its output by a tenth or more."""
        return max(self.direct, self.total) >= USES

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "kind": self.kind, "uses_position": self.uses_position}
