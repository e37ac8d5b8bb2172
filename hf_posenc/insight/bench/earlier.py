"""Compare a benchmark with an earlier one: how the ratio of each cell to the unpatched model has changed.

    change = (median ratio now) / (median ratio before)

Ratios, and not times, are compared, so that neither a busier machine nor another clock rate reads as a change of the
code. Processor time is used, which other processes affect least.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench.cell import BenchCell
from hf_posenc.insight.bench.timing import Ratio
from hf_posenc.insight.bench.variants import UNPATCHED

LARGEST = 64 << 20  # bytes of a file of results
LEAST = 0.03  # a smaller change of a median is what two runs of the same code differ by
SETTINGS = {"model": None, "dtype": None, "threads": None, "device": None, "rows": "full", "compiled": False}
"""With what a run before there was such a setting had."""
Key = tuple[str, str, int]  # scheme, case, length


@dataclass(frozen=True)
class Change:
    """A cell that both benchmarks have.

    Attributes:
        scheme: label of the entry.
        case: of `hf_posenc.insight.bench.cases.CASES`.
        length: tokens.
        before: ratio to the unpatched model in the earlier benchmark, processor time.
        now: the same today.
    """

    scheme: str
    case: str
    length: int
    before: Ratio
    now: Ratio

    @property
    def change(self) -> float:
        """Ratio now over ratio before; above 1 is slower."""
        return self.now.median / self.before.median

    @property
    def verdict(self) -> str:
        """``slower`` or ``faster`` where the quartiles of both are apart and the medians differ; else ``same``."""
        if self.change > 1 + LEAST and self.now.low > self.before.high:
            return "slower"
        if self.change < 1 / (1 + LEAST) and self.now.high < self.before.low:
            return "faster"
        return "same"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "scheme": self.scheme, "case": self.case, "length": self.length, "before": vars(self.before),
            "now": vars(self.now), "change": self.change, "verdict": self.verdict,
        }  # fmt: skip


@dataclass(frozen=True)
class Earlier:
    """An earlier benchmark.

    Attributes:
        path: of its file.
        about: its settings and environment.
        ratios: to the unpatched model, processor time, by scheme, case and length.
    """

    path: Path
    about: Mapping[str, Any]
    ratios: Mapping[Key, Ratio]

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> Earlier:
        """Read a ``bench.json``, or the one in a folder.

        Raises:
            OptionOutOfRange: it is no result of a benchmark with ratios to the unpatched model.
        """
        path = Path(file)
        path = path / "bench.json" if path.is_dir() else path
        try:
            content = read_object(path, LARGEST)
            ratios = dict(ratios_of(content["cells"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionOutOfRange(
                f"{path} is no result of a benchmark ({type(error).__name__}: {error}). "
                "Give a bench.json, which `hf-posenc bench --out FOLDER` writes."
            ) from error
        if not ratios:
            raise OptionOutOfRange(
                f"{path} has no ratio to the unpatched model, so that nothing can be compared. "
                "Give one that was made with the baseline `unpatched`."
            )
        return cls(path, content.get("about", {}), ratios)

    def changes(self, cells: Iterable[BenchCell]) -> list[Change]:
        """How the cells that both have differ, in the order of ``cells``."""
        found = []
        for cell in cells:
            before, now = (
                self.ratios.get((cell.scheme, cell.case, cell.length)),
                cell.time_ratio(UNPATCHED, "processor"),
            )
            if before is not None and now is not None:
                found.append(Change(cell.scheme, cell.case, cell.length, before, now))
        return found

    def other_settings(self, about: Mapping[str, Any]) -> list[str]:
        """What was different then, in words: a ratio depends on each of these."""
        pairs = {name: (self.about.get(name, old), about.get(name, old)) for name, old in SETTINGS.items()}
        pairs["torch"] = tuple(one.get("versions", {}).get("torch") for one in (self.about, about))
        return [f"{name}: {then} then, {now} now" for name, (then, now) in pairs.items() if then != now]


def ratios_of(cells: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Key, Ratio]]:
    """The ratios of processor time in the cells of a file."""
    for cell in cells:
        over = cell["over"].get(UNPATCHED) or {}
        if found := over.get("processor_time"):
            yield (cell["scheme"], cell["case"], cell["length"]), Ratio(**found)
