"""Results of a benchmark: a cell for each scheme, case and length; as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_posenc.insight.bench.devices import Elapsed, Ratio, ratio
from hf_posenc.insight.bench.models import PATCHED, UNPATCHED

NONE = "—"
MIB = 2**20
TITLES = {
    "prefill": "prefill: a text is read",
    "decode": "decode: one token is read after a cached text",
    "train": "train: forward and backward",
}


@dataclass(frozen=True)
class Measured:
    """Measurement of one model in a cell.

    Attributes:
        times: of one call, one per round; empty without a measurement.
        memory: peak bytes above the model, the cache of a decoding step included; None where it is not counted.
    """

    times: tuple[Elapsed, ...] = ()
    memory: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "wall_seconds": [t.wall for t in self.times], "processor_seconds": [t.processor for t in self.times],
            "memory_bytes": self.memory,
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

    def time_ratio(self, clock: str = "wall") -> Ratio | None:
        """Time with the scheme over that of the unpatched model; None where one of the two has none."""
        ours, theirs = self.models.get(PATCHED), self.models.get(UNPATCHED)
        if not (ours and theirs and ours.times and theirs.times):
            return None
        return ratio([getattr(t, clock) for t in ours.times], [getattr(t, clock) for t in theirs.times])

    def memory_ratio(self) -> float | None:
        """Memory with the scheme over that of the unpatched model; None where one of the two has none."""
        ours, theirs = self.models.get(PATCHED), self.models.get(UNPATCHED)
        if not (ours and theirs and ours.memory and theirs.memory):
            return None
        return ours.memory / theirs.memory

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = {
            "time": values_of(self.time_ratio()),
            "processor_time": values_of(self.time_ratio("processor")),
            "memory": self.memory_ratio(),
        }
        return {
            "scheme": self.scheme, "case": self.case, "length": self.length, "tokens": self.tokens,
            "state": self.state, "why_not": self.why_not, "over": {UNPATCHED: ratios},
            "models": {role: found.to_dict() for role, found in self.models.items()},
        }  # fmt: skip


def values_of(found: Ratio | None) -> dict[str, float] | None:
    """A ratio as plain values."""
    return None if found is None else asdict(found)


def table(cells: Sequence[BenchCell], case: str) -> tuple[list[str], list[list[str]]]:
    """Column heads and lines of a case."""
    mine = [cell for cell in cells if cell.case == case]
    lines = [line(cell) for cell in mine]
    return list(lines[0]), [list(one.values()) for one in lines]


def line(cell: BenchCell) -> dict[str, str]:
    """A cell as a line of its table, by column; times are those of the median round."""
    ours = cell.models.get(PATCHED, Measured())
    seconds = sorted(t.wall for t in ours.times)[len(ours.times) // 2] if ours.times else None
    memory = cell.memory_ratio()
    return {
        "scheme": cell.scheme, "tokens": f"{cell.length:,}",
        "ms/token" if cell.case == "decode" else "ms": NONE if seconds is None else f"{1000 * seconds:.4g}",
        "tokens/s": NONE if seconds is None else f"{cell.tokens / seconds:,.0f}",
        "MiB": NONE if ours.memory is None else f"{ours.memory / MIB:.1f}",
        "time / unpatched": spread(cell.time_ratio()),
        "CPU time / unpatched": spread(cell.time_ratio("processor")),  # steadier on a busy machine
        "MiB / unpatched": NONE if memory is None else f"{memory:.2f}",
    }  # fmt: skip


def spread(found: Ratio | None) -> str:
    """``1.02 (0.99–1.05)``: the median of paired ratios, and its quartiles."""
    return NONE if found is None else f"{found.median:.3g} ({found.low:.3g}–{found.high:.3g})"


def remarks(cells: Sequence[BenchCell]) -> list[str]:
    """Why cells have no values, each once."""
    return [
        f"{cell.scheme}, {cell.case}, {cell.length:,} tokens: {cell.state}: {cell.why_not}"
        for cell in cells if cell.why_not
    ]  # fmt: skip
