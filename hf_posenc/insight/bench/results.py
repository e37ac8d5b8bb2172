"""Results of a benchmark: a cell for each scheme, case and length; as tables, and as a plot.

The plot has time and memory relative to the unpatched model, against length, two panels per case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from hf_posenc.core.plotting import MARKERS, length_names, panels, plain, save_figure
from hf_posenc.insight.bench.devices import Elapsed, Ratio, ratio
from hf_posenc.insight.bench.models import NAIVE, PATCHED, UNPATCHED
from hf_posenc.insight.bench.settings import DECODING
from hf_posenc.insight.plots.marks import style

NONE = "—"
MIB = 2**20
WAITED = 1.1  # wall time over processor time of one thread; an undisturbed one has 1.00 to 1.02
TITLES = {
    "prefill": "prefill: a text is read",
    "decode": "decode: one token is read after a cached text",
    "static_decode": "decode: one token is read after a text in a cache of fixed size (StaticCache)",
    "train": "train: forward and backward",
}
PANEL = (4.6, 3.4)  # inches, in the plot


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
                "time": values_of(self.time_ratio(role)),
                "processor_time": values_of(self.time_ratio(role, "processor")),
                "memory": self.memory_ratio(role),
            }
            for role in self.models if role != PATCHED
        }  # fmt: skip
        return {
            "scheme": self.scheme, "case": self.case, "length": self.length, "tokens": self.tokens,
            "state": self.state, "why_not": self.why_not, "over": ratios,
            "models": {role: found.to_dict() for role, found in self.models.items()},
        }  # fmt: skip


def values_of(found: Ratio | None) -> dict[str, float] | None:
    """A ratio as plain values."""
    return None if found is None else asdict(found)


def table(cells: Sequence[BenchCell], case: str) -> tuple[list[str], list[list[str]]]:
    """Column heads and lines of a case."""
    mine = [cell for cell in cells if cell.case == case]
    roles = [role for role in (UNPATCHED, NAIVE) if any(role in cell.models for cell in mine)]
    lines = [line(cell, roles) for cell in mine]
    return list(lines[0]), [list(one.values()) for one in lines]


def line(cell: BenchCell, roles: Sequence[str]) -> dict[str, str]:
    """A cell as a line of its table, by column; times are those of the median round."""
    ours = cell.models.get(PATCHED, Measured())
    seconds = sorted(t.wall for t in ours.times)[len(ours.times) // 2] if ours.times else None
    found = {
        "scheme": cell.scheme, "tokens": f"{cell.length:,}",
        "ms/token" if cell.case in DECODING else "ms": NONE if seconds is None else f"{1000 * seconds:.4g}",
        "tokens/s": NONE if seconds is None else f"{cell.tokens / seconds:,.0f}",
        "MiB": NONE if ours.memory is None else f"{ours.memory / MIB:.1f}",
    }  # fmt: skip
    for role in roles:
        memory = cell.memory_ratio(role)
        found[f"time / {role}"] = spread(cell.time_ratio(role))
        if role == UNPATCHED:  # steadier than time on a busy machine; of naive forms the times differ anyway
            found[f"CPU time / {role}"] = spread(cell.time_ratio(role, "processor"))
        found[f"MiB / {role}"] = NONE if memory is None else f"{memory:.2f}"
    return found


def spread(found: Ratio | None) -> str:
    """``1.02 (0.99–1.05)``: the median of paired ratios, and its quartiles."""
    return NONE if found is None else f"{found.median:.3g} ({found.low:.3g}–{found.high:.3g})"


def busy_remark(cells: Sequence[BenchCell], threads: int, device: str) -> list[str]:
    """A remark where other processes disturbed the run. Several threads, and a GPU, do not show it by their times."""
    waits = [
        t.wall / t.processor for c in cells for measured in c.models.values() for t in measured.times if t.processor > 0
    ]
    if threads != 1 or device != "cpu" or not waits or (waited := median(waits)) < WAITED:
        return []
    return [
        f"The processor was busy with other work: wall time was {waited:.2f} times the processor time. "
        "Trust the ratios of CPU time, or run again when it is idle."
    ]


def remarks(cells: Sequence[BenchCell]) -> list[str]:
    """Notes that explain dashes, each once."""
    notes = []
    for cell in cells:
        where = f"{cell.scheme}, {cell.case}, {cell.length:,} tokens"
        if cell.why_not:
            notes.append(f"{where}: {cell.state}: {cell.why_not}")
        notes += [f"{where}: no {role}: {found.why_not}" for role, found in cell.models.items() if found.why_not]
    return notes


def write_plot(cells: Sequence[BenchCell], path: Path) -> bool:
    """Draw ratios to the unpatched model; False where there are none.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    shown = [cell for cell in cells if cell.time_ratio(UNPATCHED) is not None]
    cases = list(dict.fromkeys(cell.case for cell in shown))
    if not cases:
        return False
    canvas, grid = panels(2 * PANEL[0], len(cases) * PANEL[1], len(cases), 2, shared=False)
    for panel, (case, name) in zip(grid, product(cases, ("time", "memory")), strict=True):
        draw(panel, [cell for cell in shown if cell.case == case], name)
        panel.set_title(f"{case}: {name}", loc="left", fontsize=10)
        panel.set_ylabel(f"{name} / unpatched")
    handles, labels = grid[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    save_figure(canvas, path)
    return True


def draw(axes: Any, cells: Sequence[BenchCell], what: str) -> None:
    """Ratios of time, with quartiles, or of memory: a line per scheme, and a dashed one at 1, the unpatched model."""
    lengths = sorted({cell.length for cell in cells})
    axes.axhline(1.0, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    for number, scheme in enumerate(dict.fromkeys(cell.scheme for cell in cells)):
        points = sorted((cell.length, *of_unpatched(cell, what)) for cell in cells if cell.scheme == scheme)
        x, y, down, up = zip(*points, strict=True)
        axes.errorbar(
            x, y, (down, up), label=scheme, marker=MARKERS[number % len(MARKERS)], markersize=5, linewidth=1.6,
            elinewidth=0.8, zorder=3, **style(number),
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, length_names(lengths))
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_ylim(bottom=0)
    plain(axes)


def of_unpatched(cell: BenchCell, what: str) -> tuple[float, float, float]:
    """A ratio to the unpatched model, and how far its quartiles are below and above; NaN where there is none."""
    found, memory = cell.time_ratio(UNPATCHED), cell.memory_ratio(UNPATCHED)
    if what == "time" and found is not None:
        return found.median, found.median - found.low, found.high - found.median
    return (math.nan if memory is None else memory), 0.0, 0.0
