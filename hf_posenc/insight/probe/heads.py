"""What one head does, in a line: where it looks, and how much it cares about position."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MOST = 0.5  # of a row's weight, on average
NEAR = 16  # tokens
NEIGHBOURS = {0: "itself", 1: "previous token", -1: "next token"}
USES = 0.1  # relative change of its output under shuffled positions


@dataclass(frozen=True)
class Head:
    """One head of a model, over the rows looked at.

    Attributes:
        layer, head: which.
        mean_distance: of the weight it gives, tokens.
        strongest: the fixed distance that gets the most weight; negative looks ahead.
        share: that weight.
        sink: weight on the first tokens.
        near: weight at distances up to 16.
        beyond: weight at distances of the trained length and more.
        entropy: of its weights, nats; e^entropy tokens share them.
        direct, total: change of its output when positions are shuffled; see `hf_posenc.insight.probe.position_shuffle`.
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

    @property
    def kind(self) -> str:
        """A name for what it mostly does."""
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
        """Plain values, for JSON."""
        return {**asdict(self), "kind": self.kind, "uses_position": self.uses_position}
