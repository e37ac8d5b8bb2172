"""Claims about scores: one variant is better than another, or as good, by a stated margin.

    gain = score of the first − score of the second        signed so that positive means the first is better

    Order    gain > margin
    Same     −within < gain < within
    Able     score of one variant alone > least        what a model must be able to do for an order to mean anything

A published finding is a conjunction of such claims, so that its verdict needs no rules of its own: see
`lab.verdict`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any, NamedTuple


class Side(NamedTuple):
    """What is on one side of a claim: a variant, at a point of the finding's axis."""

    variant: str
    at: float


@dataclass(frozen=True)
class Metric:
    """What a cell scores of each document.

    Attributes:
        name: key of the scores in a cell, ``"loss"``.
        unit: ``"nats/token"``; ``"share"`` for scores of 0 and 1.
        higher_is_better: whether it is.
    """

    name: str
    unit: str
    higher_is_better: bool


LOSS = Metric("loss", "nats/token", higher_is_better=False)
ACCURACY = Metric("accuracy", "share", higher_is_better=True)


@dataclass(frozen=True)
class Order:
    """One variant is better than another, on the same documents, by more than a margin.

    Attributes:
        better, worse: labels of variants.
        at: point of the finding's axis, such as a length, where both are scored.
        margin: what the gain must exceed, in the unit of the metric; negative for *at most so much worse*.
        metric: name of the metric; by default the first of the finding.
        worse_at: point of ``worse``, where it is another one.
    """

    better: str
    worse: str
    at: float
    margin: float = 0.0
    metric: str = ""
    worse_at: float | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        """The two sides, of which the first is claimed to be better."""
        return Side(self.better, self.at), Side(self.worse, self.at if self.worse_at is None else self.worse_at)

    @property
    def region(self) -> tuple[float, float]:
        """The open interval in which the gain must lie."""
        return self.margin, inf


@dataclass(frozen=True)
class Same:
    """Two variants are as good as each other, within a margin that counts as no difference.

    Attributes:
        first, second: labels of variants.
        at: point of the finding's axis where both are scored.
        within: largest difference that still counts as none, in the unit of the metric.
        metric: name of the metric; by default the first of the finding.
        second_at: point of ``second``, where it is another one.
    """

    first: str
    second: str
    at: float
    within: float
    metric: str = ""
    second_at: float | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        """The two sides."""
        return Side(self.first, self.at), Side(self.second, self.at if self.second_at is None else self.second_at)

    @property
    def region(self) -> tuple[float, float]:
        """The open interval in which the gain must lie."""
        return -self.within, self.within


@dataclass(frozen=True)
class Able:
    """One variant scores more than a bound; a finding needs this before its claims can be decided.

    Attributes:
        variant: label.
        at: point of the finding's axis.
        least: what the mean score must surely exceed; of a metric of which more is better.
        metric: name of the metric; by default the first of the finding.
    """

    variant: str
    at: float
    least: float
    metric: str = ""

    @property
    def sides(self) -> tuple[Side]:
        """The only side."""
        return (Side(self.variant, self.at),)

    @property
    def region(self) -> tuple[float, float]:
        """The open interval in which the mean score must lie."""
        return self.least, inf


Claim = Order | Same | Able
KINDS: dict[str, type[Order] | type[Same] | type[Able]] = {"order": Order, "same": Same, "able": Able}


def claim_to_dict(claim: Claim) -> dict[str, Any]:
    """Plain values for JSON, with the kind of the claim."""
    kind = next(name for name, cls in KINDS.items() if isinstance(claim, cls))
    return {"kind": kind, **asdict(claim)}


def claim_of(values: dict[str, Any]) -> Claim:
    """The claim that `claim_to_dict` wrote."""
    return KINDS[values["kind"]](**{name: value for name, value in values.items() if name != "kind"})


def in_words(claim: Claim, axis: str) -> str:
    """A claim as a sentence: ``yarn better than pi at 4× by more than 0.1``; ``axis`` formats a point: ``"{:g}×"``."""
    low, high = claim.region
    (first, at), (second, other) = claim.sides[0], claim.sides[-1]
    if len(claim.sides) == 1:
        return f"{claim.metric or 'score'} of {first} at {axis.format(at)} more than {low:g}"
    places = f" at {axis.format(at)}" if other == at else ""
    of_metric = f", {claim.metric}" if claim.metric else ""
    if other != at:
        first, second = f"{first} at {axis.format(at)}", f"{second} at {axis.format(other)}"
    if high != inf:
        return f"{first} equal to {second}{places} within {high:g}{of_metric}"
    if low < 0:
        return f"{first} at most {-low:g} worse than {second}{places}{of_metric}"
    return f"{first} better than {second}{places}" + (f" by more than {low:g}" if low else "") + of_metric


def signed(value: float) -> str:
    """A gain with its sign: ``+0.137``, and ``-2e-06`` where three digits would show none."""
    return f"{value:+.3f}" if abs(value) >= 0.0005 or value == 0.0 else f"{value:+.0e}"
