"""A line of a leaderboard: a scheme on a task of a model, with everything that was measured of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_posenc.eval.results.comparison import GAINS, SHARES


@dataclass(frozen=True)
class LengthScore:
    """The score of a scheme on a task at one length.

    Attributes:
        length: tokens.
        state: ``"done"``, ``"refused"`` or ``"failed"``, as in `hf_posenc.eval.results.record.Record`.
        value: mean over documents; None without a score.
        low, high: 95 % interval by Student's t over clusters of documents; None for too few.
        bootstrap_low, bootstrap_high: the same by the bootstrap.
        n: documents.
        reason: why there is no score.
        key: of the cell in ``cells.sqlite``.
        command: measures this cell again.
    """

    length: int
    state: str
    value: float | None
    low: float | None
    high: float | None
    bootstrap_low: float | None
    bootstrap_high: float | None
    n: int
    reason: str
    key: str
    command: str


@dataclass(frozen=True)
class Effective:
    """Effective context length, with its 95 % bootstrap interval; lengths in tokens, 0 where none passes.

    Attributes:
        threshold: of the score.
        length: the longest measured length that passes.
        low, high: interval; None for too few documents.
    """

    threshold: float
    length: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Rank:
    """Places that are possible at the longest length, given which differences are sure.

    Attributes:
        first: 1 plus the number of lines that are surely better.
        last: number of lines less those that are surely worse.
        of: number of lines that are compared.
    """

    first: int
    last: int
    of: int


@dataclass(frozen=True)
class Behind:
    """Mean difference from the first line of the table at the longest length, over the same documents.

    Attributes:
        first: label of that line.
        value: score less that of the first line.
        low, high: 95 % interval by Student's t over clusters, for this comparison alone; None for too few.
    """

    first: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairedCost:
    """Cost of one pass over that of the unpatched model, timed alternately.

    Attributes:
        case: ``"prefill"`` or ``"decode"``.
        length: tokens.
        time, time_low, time_high: median and quartiles of the ratio of times.
        memory: ratio of the peak memory above the weights; None where it cannot be measured.
        seconds: of one pass of the scheme, median; on this machine alone.
    """

    case: str
    length: int
    time: float
    time_low: float
    time_high: float
    memory: float | None
    seconds: float


@dataclass(frozen=True)
class Line:
    """A scheme on a task of a model.

    Attributes:
        model, scheme: names.
        kind: what the scheme changes, such as ``"rotary"`` or ``"remap"``.
        use: ``"unpatched"``, ``"zero-shot"`` or ``"training"``, as in `hf_posenc.list_schemes`.
        task, metric: of the scores.
        scores: by length.
        effective: None where the metric has no threshold, or the model cannot do the task at its trained length.
        rank: None without a score at the longest length, and for a line that none is compared with.
        behind: None for the first line, and without a score at the longest length.
        costs: at the longest length, by case.
        cache_per_token: bytes of the KV cache for each token; None without one.
    """

    model: str
    scheme: str
    kind: str
    use: str
    task: str
    metric: str
    scores: tuple[LengthScore, ...]
    effective: Effective | None
    rank: Rank | None
    behind: Behind | None
    costs: tuple[PairedCost, ...]
    cache_per_token: float | None

    @property
    def longest(self) -> LengthScore:
        """The score at the longest length."""
        return self.scores[-1]

    @property
    def is_share(self) -> bool:
        """Whether the metric is a share, 0 … 1; else it is in nats/token."""
        return self.metric in SHARES

    @property
    def more_is_better(self) -> bool:
        """Whether a higher score is the better one: of shares and gains, and not of losses."""
        return self.is_share or self.metric in GAINS

    def cost(self, case: str) -> PairedCost | None:
        """The cost of one case; None where it was not measured."""
        return next((cost for cost in self.costs if cost.case == case), None)


def line_of(content: dict[str, Any]) -> Line:
    """A line from plain values."""
    parts: dict[str, Any] = {
        "scores": tuple(LengthScore(**score) for score in content["scores"]),
        "effective": content["effective"] and Effective(**content["effective"]),
        "rank": content["rank"] and Rank(**content["rank"]),
        "behind": content["behind"] and Behind(**content["behind"]),
        "costs": tuple(PairedCost(**cost) for cost in content["costs"]),
    }
    return Line(**{**content, **parts})
