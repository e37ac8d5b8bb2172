"""Results of a benchmark: one cell per scheme, case and length, and tables of cells."""

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
        times: time of one call in each round; empty if it was not measured.
        memory: peak bytes above the weights, in decoding with the cache; None if it was not measured.
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
    """Measurements of a scheme and of the unpatched model, in one case at one length.

    Attributes:
        scheme: label of the entry.
        case: a key of `hf_posenc.insight.bench.cases.CASES`.
        length: tokens of a text, or in the cache.
        tokens: tokens of one call, over the batch.
        state: ``done``; ``refused`` if the scheme is not defined here; ``failed`` if an error ended it.
        models: measurements by role: ``unpatched``, ``patched``.
        why_not: reason, if the state is not ``done``.
    """

    scheme: str
    case: str
    length: int
    tokens: int
    state: str
    models: dict[str, Measured]
    why_not: str = ""

    def time_ratio(self, clock: str = "wall") -> Ratio | None:
        """Return time with the scheme divided by time of the unpatched model; None if either was not measured."""
        patched, unpatched = self.models.get(PATCHED), self.models.get(UNPATCHED)
        if not (patched and unpatched and patched.times and unpatched.times):
            return None
        return ratio([getattr(t, clock) for t in patched.times], [getattr(t, clock) for t in unpatched.times])

    def memory_ratio(self) -> float | None:
        """Return memory with the scheme divided by memory of the unpatched model; None if either was not measured."""
        patched, unpatched = self.models.get(PATCHED), self.models.get(UNPATCHED)
        if not (patched and unpatched and patched.memory and unpatched.memory):
            return None
        return patched.memory / unpatched.memory

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        time, processor_time = self.time_ratio(), self.time_ratio("processor")
        ratios = {
            "time": time and asdict(time),
            "processor_time": processor_time and asdict(processor_time),
            "memory": self.memory_ratio(),
        }
        return {
            "scheme": self.scheme, "case": self.case, "length": self.length, "tokens": self.tokens,
            "state": self.state, "why_not": self.why_not, "over": {UNPATCHED: ratios},
            "models": {role: measured.to_dict() for role, measured in self.models.items()},
        }  # fmt: skip


def table(cells: Sequence[BenchCell], case: str) -> tuple[list[str], list[list[str]]]:
    """Return the column heads and the lines of the table of a case."""
    lines = [line(cell) for cell in cells if cell.case == case]
    return list(lines[0]), [list(one.values()) for one in lines]


def line(cell: BenchCell) -> dict[str, str]:
    """Format a cell as a line of its table, by column; times are those of the median round."""
    patched = cell.models.get(PATCHED, Measured())
    seconds = sorted(t.wall for t in patched.times)[len(patched.times) // 2] if patched.times else None
    memory = cell.memory_ratio()
    return {
        "scheme": cell.scheme, "tokens": f"{cell.length:,}",
        "ms/token" if cell.case == "decode" else "ms": NONE if seconds is None else f"{1000 * seconds:.4g}",
        "tokens/s": NONE if seconds is None else f"{cell.tokens / seconds:,.0f}",
        "MiB": NONE if patched.memory is None else f"{patched.memory / MIB:.1f}",
        "time / unpatched": spread(cell.time_ratio()),
        "CPU time / unpatched": spread(cell.time_ratio("processor")),  # steadier on a busy machine
        "MiB / unpatched": NONE if memory is None else f"{memory:.2f}",
    }  # fmt: skip


def spread(times: Ratio | None) -> str:
    """Format the median of paired ratios and the quartiles, as in ``1.02 (0.99–1.05)``."""
    return NONE if times is None else f"{times.median:.3g} ({times.low:.3g}–{times.high:.3g})"


def remarks(cells: Sequence[BenchCell]) -> list[str]:
    """Return one line for every cell without values, with the reason."""
    return [
        f"{cell.scheme}, {cell.case}, {cell.length:,} tokens: {cell.state}: {cell.why_not}"
        for cell in cells if cell.why_not
    ]  # fmt: skip
