"""Options from a task's metadata: validated, with defaults filled in, and kept for the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.parse import paths, whole


class TaskOptions:
    """Options from a task's metadata.

    Attributes:
        used: every option parsed so far, by name.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.used: dict[str, Any] = {}

    def whole(self, name: str, default: int, least: int = 1, most: int = 1000) -> int:
        """Parse an option that is a whole number.

        Raises:
            TaskOptionOutOfRange: it is no whole number from ``least`` to ``most``.
        """
        given = whole(name, self.given.get(name, default))
        if not least <= given <= most:
            raise TaskOptionOutOfRange(
                f"{name} must lie between {least} and {most}, got {given}. The default is {default}."
            )
        self.used[name] = given
        return given

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Parse an option that is a real number.

        Raises:
            TaskOptionOutOfRange: it is no number from ``least`` to ``most``.
        """
        try:
            given = float(self.given.get(name, default))
        except (TypeError, ValueError):
            given = math.nan
        if not least <= given <= most:
            value = self.given[name]
            raise TaskOptionOutOfRange(
                f"{name} must lie between {least} and {most}, got {value!r}. The default is {default}."
            )
        self.used[name] = given
        return given

    def paths(self, name: str) -> tuple[str, ...]:
        """Parse an option that names files and folders, one or several; none where it is left out.

        Raises:
            TaskOptionOutOfRange: it is neither.
        """
        given = tuple(map(str, paths(self.given.get(name), name)))
        self.used[name] = list(given)
        return given

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """Parse an option that names one of several; the first by default.

        Raises:
            TaskOptionOutOfRange: it names none of them.
        """
        given = self.given.get(name, choices[0])
        if given not in choices:
            raise TaskOptionOutOfRange(
                f"{name} must be one of {', '.join(choices)}, got {given!r}. Choose one of them."
            )
        self.used[name] = given
        return given
