"""Registry of lessons by name; every module of `hf_posenc.insight.lessons.demonstrations` registers one or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hf_posenc.insight.lessons.finding import Table

Result = tuple[str, "Iterable[Table]", str]
"""What the lesson does, its tables, and the conclusion."""

Experiment = Callable[..., Result]


@dataclass(frozen=True)
class Lesson:
    """A registered lesson.

    Attributes:
        name: one word.
        title: the question it answers.
        schemes: schemes it runs on by default; empty for a lesson that takes none.
        run: runs the experiment on a tuple of schemes; without arguments where the lesson takes none.
    """

    name: str
    title: str
    schemes: tuple[str, ...]
    run: Experiment


_LESSONS: dict[str, Lesson] = {}


def register_lesson(name: str, title: str, *, schemes: tuple[str, ...] = ()) -> Callable[[Experiment], Experiment]:
    """Register the decorated function as a lesson.

    Raises:
        ValueError: there is a lesson of that name already.
    """

    def decorate(run: Experiment) -> Experiment:
        if name in _LESSONS:
            raise ValueError(f"There is a lesson {name!r} already. Choose another name.")
        _LESSONS[name] = Lesson(name, title, schemes, run)
        return run

    return decorate


def registered_lessons() -> dict[str, Lesson]:
    """Return the lessons registered so far, by name."""
    return dict(_LESSONS)
