"""Registry of lessons by name; every module of `hf_posenc.insight.lessons.demonstrations` registers its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

import torch

from hf_posenc.errors import UnknownLesson, nearest
from hf_posenc.insight.lessons.finding import Finding, Table

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


def all_lessons() -> dict[str, Lesson]:
    """Return all lessons by name."""
    _load()
    return dict(sorted(_LESSONS.items()))


def explain(name: str, schemes: Iterable[str] = ()) -> Finding:
    """Run a lesson.

    Args:
        name: of the lesson.
        schemes: schemes to run it on instead of its defaults, as in `hf_posenc.patch_model`.

    Raises:
        UnknownLesson: there is no lesson of that name, or schemes are given to one that takes none.
        PosEncError: a scheme is refused.
    """
    known = all_lessons()
    if name not in known:
        raise UnknownLesson(f"There is no lesson {name!r}.{nearest(name, known)} `hf-posenc explain` lists them.")
    lesson, given = known[name], tuple(schemes)
    if given and not lesson.schemes:
        raise UnknownLesson(f"Lesson {name!r} takes no schemes. Leave --scheme out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shows, tables, conclusion = lesson.run(given or lesson.schemes) if lesson.schemes else lesson.run()
    return Finding(name, lesson.title, " ".join(shows.split()), tuple(tables), " ".join(conclusion.split()))


@lru_cache(maxsize=1)
def _load() -> None:
    package = import_module("hf_posenc.insight.lessons.demonstrations")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
