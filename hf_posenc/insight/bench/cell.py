"""Results of a benchmark: a cell for each scheme, case and length, with a measurement for each model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hf_posenc.insight.bench.timing import Elapsed, Ratio, ratio
from hf_posenc.insight.bench.variants import PATCHED


@dataclass(frozen=True)
class Measured:
    """Measurement of one model in a cell.

    Attributes:
        times: of one call, one per round; empty without a measurement.
        memory: peak bytes above the model, the cache of a decoding step included.
        why_not: where there are no times.
    """

    times: tuple[Elapsed, ...] = ()
    memory: int | None = None
    why_not: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "wall_seconds": [t.wall for t in self.times], "processor_seconds": [t.processor for t in self.times],
            "memory_bytes": self.memory, "why_not": self.why_not,
        }  # fmt: skip


@dataclass(frozen=True)
class BenchCell:
    """Measurements of a scheme in one case at one length, and of the models it is compared with.

    Attributes:
        scheme: label of the entry.
        case: of `hf_posenc.insight.bench.cases.CASES`.
        length: tokens of a text, or in the cache.
        tokens: of one call, over the batch.
        state: ``done``, ``refused`` where the scheme is not defined here, ``failed`` where an error ended it.
        models: measurements, by role.
        why_not: where the state is not ``done``.
    """

    scheme: str
    case: str
    length: int
    tokens: int
    state: str
    models: dict[str, Measured]
    why_not: str = ""

    def time_ratio(self, role: str, clock: str = "wall") -> Ratio | None:
        """Time with the scheme over that of another model; None where one of the two has none."""
        ours, theirs = self.models.get(PATCHED), self.models.get(role)
        if not (ours and theirs and ours.times and theirs.times):
            return None
        return ratio([getattr(t, clock) for t in ours.times], [getattr(t, clock) for t in theirs.times])

    def memory_ratio(self, role: str) -> float | None:
        """Memory with the scheme over that of another model; None where one of the two has none."""
        ours, theirs = self.models.get(PATCHED), self.models.get(role)
        if not (ours and theirs and ours.memory and theirs.memory):
            return None
        return ours.memory / theirs.memory

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = {
            role: {
                "time": plain(self.time_ratio(role)), "processor_time": plain(self.time_ratio(role, "processor")),
                "memory": self.memory_ratio(role),
            }
            for role in self.models if role != PATCHED
        }  # fmt: skip
        return {
            "scheme": self.scheme, "case": self.case, "length": self.length, "tokens": self.tokens,
            "state": self.state, "why_not": self.why_not, "over": ratios,
            "models": {role: found.to_dict() for role, found in self.models.items()},
        }  # fmt: skip


def plain(found: Ratio | None) -> dict[str, float] | None:
    """A ratio as plain values."""
    return None if found is None else asdict(found)
