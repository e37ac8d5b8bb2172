"""All lessons: importing a module of `hf_posenc.insight.lessons.demonstrations` registers its lessons."""

from __future__ import annotations

from collections.abc import Iterable

from hf_posenc.core.random_state import drawn_from
from hf_posenc.errors import UnknownLesson, nearest
from hf_posenc.insight.lessons.demonstrations import (  # noqa: F401
    base,
    binary,
    buckets,
    concat,
    constant,
    direction,
    dog,
    families,
    grid,
    hierarchy,
    layernorm,
    permutation,
    readers,
    rope,
    shift,
    sine,
    softmax,
    steps,
    terms,
    translation,
    window,
)
from hf_posenc.insight.lessons.finding import LessonResult
from hf_posenc.insight.lessons.registry import Lesson, registered_lessons


def all_lessons() -> dict[str, Lesson]:
    """Return all lessons by name, sorted."""
    return dict(sorted(registered_lessons().items()))


def explain(name: str, schemes: Iterable[str] = ()) -> LessonResult:
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
    with drawn_from(0):
        shows, tables, conclusion = lesson.run(given or lesson.schemes) if lesson.schemes else lesson.run()
    return LessonResult(name, lesson.title, " ".join(shows.split()), tuple(tables), " ".join(conclusion.split()))
