"""The leaderboard as data: a line for each scheme on each task of each model. JSON has all of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import BadComparison, shown
from hf_posenc.insight.leaderboard.line import Line, line_of

FORMAT = 1
FILE = "leaderboard.json"
LARGEST = 64 << 20  # bytes of a file that is read


@dataclass(frozen=True)
class Leaderboard:
    """All lines, ordered by model, task and rank, and what they were measured with.

    Attributes:
        about: date, command, machine, versions, settings, and a list of the models: name, trained length, digests,
            schemes that were left out with the reason, and remarks.
        lines: see `Line`.
    """

    about: dict[str, Any]
    lines: list[Line] = field(default_factory=list)

    def tables(self) -> dict[tuple[str, str], list[Line]]:
        """Group the lines by model and task."""
        found: dict[tuple[str, str], list[Line]] = {}
        for line in self.lines:
            found.setdefault((line.model, line.task), []).append(line)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"format": FORMAT, "about": self.about, "lines": [asdict(line) for line in self.lines]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Leaderboard:
        """The leaderboard of plain values."""
        return cls(content["about"], [line_of(line) for line in content["lines"]])


def read_leaderboard(path: str | Path) -> Leaderboard:
    """Read a ``leaderboard.json``.

    Raises:
        BadComparison: it cannot be read, or has another format.
    """
    try:
        content = read_object(Path(path), LARGEST)
        if content["format"] == FORMAT:
            return Leaderboard.from_dict(content)
        found = shown(content["format"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadComparison(f"{str(path)!r} holds no leaderboard ({error}). Make it again.") from error
    raise BadComparison(f"{str(path)!r} has format {found}, and format {FORMAT} is read. Make it again.")
