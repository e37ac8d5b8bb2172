"""A published finding as a value: what is claimed, by whom, what is run, and the claims that decide about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.cells import Scores
from lab.claims import Able, Claim, Metric
from lab.verdict import metric_of


@dataclass(frozen=True)
class Budget:
    """How much is run.

    Attributes:
        seeds: random seeds of what is drawn anew for each, such as initial weights; documents stay the same.
        options: what the measurement takes, as JSON values: samples, keys, steps.
    """

    seeds: tuple[int, ...] = (0,)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What is to be measured of one variant with one seed.

    Attributes:
        variant: its label.
        settings: what the finding declares of the variant.
        points: of the axis, those still to be measured.
        axis: all points of the finding.
        seed: random seed.
        options: of the budget.
        model: name of the model; empty where the finding makes its own.
        progress: called with the completed fraction of the job and what is being done.
    """

    variant: str
    settings: Any
    points: tuple[float, ...]
    axis: tuple[float, ...]
    seed: int
    options: Mapping[str, Any]
    model: str
    progress: Callable[[float, str], None]


Measure = Callable[[Job], Iterator[tuple[float, Scores]]]
"""Measures a job: yields the scores at each of its points as soon as they are known."""


@dataclass(frozen=True)
class Finding:
    """A published finding and how it is reproduced.

    Attributes:
        name: of the command.
        claim: what was found, in one sentence.
        source: paper with arXiv id, and the section or figure.
        against: what would count against it.
        limits: what the models used here cannot show.
        variants: what is compared: label to settings, JSON values that ``measure`` understands.
        points: of the axis, all of which are measured.
        axis: what a point is.
        point_format: how a point is shown: ``"{:g}×"``.
        metrics: what is scored of each document.
        claims: that together are the finding.
        needs: abilities without which the claims cannot be decided.
        full, quick: budgets.
        measure: measures one variant with one seed.
        model: that it runs on by default; None where it makes its own.
    """

    name: str
    claim: str
    source: str
    against: str
    variants: Mapping[str, Any]
    points: tuple[float, ...]
    axis: str
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    full: Budget
    quick: Budget
    measure: Measure
    needs: tuple[Able, ...] = ()
    limits: str = ""
    point_format: str = "{:g}"
    model: str | None = None

    def __post_init__(self) -> None:
        """Check that the claims are about what is measured.

        Raises:
            ValueError: a claim names a variant, a point or a metric that the finding does not have; or there is none.
        """
        if not self.claims:
            raise ValueError(f"The finding {self.name!r} claims nothing. Give it an Order or a Same.")
        for claim in (*self.claims, *self.needs):
            for side in claim.sides:
                if side.variant not in self.variants or side.at not in self.points:
                    raise ValueError(f"{self.name!r} claims something of {side}, which is not measured. Add it.")
            if claim.metric and metric_of(claim, self.metrics).name != claim.metric:
                raise ValueError(f"{self.name!r} has no metric {claim.metric!r}. Add it.")

    def budget(self, quick: bool) -> Budget:
        """The smaller budget or the full one."""
        return self.quick if quick else self.full
