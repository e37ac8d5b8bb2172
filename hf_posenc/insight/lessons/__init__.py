"""Lessons on positional encodings: small experiments that measure something and conclude from the numbers.

    from hf_posenc.insight.lessons import all_lessons, explain
    print(explain("dog").conclusion)

A lesson is one file of `hf_posenc.insight.lessons.demonstrations`: a registered function that returns what it does, its
tables of measurements and its conclusion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.lessons.catalogue import all_lessons as all_lessons
    from hf_posenc.insight.lessons.catalogue import explain as explain
    from hf_posenc.insight.lessons.finding import LessonResult as LessonResult
    from hf_posenc.insight.lessons.finding import Table as Table
    from hf_posenc.insight.lessons.listing import list_lessons as list_lessons
    from hf_posenc.insight.lessons.registry import Lesson as Lesson
    from hf_posenc.insight.lessons.registry import register_lesson as register_lesson

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.lessons.catalogue": ("all_lessons", "explain"),
        "hf_posenc.insight.lessons.finding": ("LessonResult", "Table"),
        "hf_posenc.insight.lessons.listing": ("list_lessons",),
        "hf_posenc.insight.lessons.registry": ("Lesson", "register_lesson"),
    },
)
