"""Lessons on positional encodings: small experiments that measure something and conclude from the numbers.

    from hf_posenc.insight.lessons import all_lessons, explain
    print(explain("dog").conclusion)

A lesson is one file of `hf_posenc.insight.lessons.demonstrations`: a registered function that returns what it does, its
tables of measurements and its conclusion.
"""

from __future__ import annotations

from hf_posenc.insight.lessons.finding import Finding, Table
from hf_posenc.insight.lessons.registry import (
    Lesson,
    all_lessons,
    explain,
    register_lesson,
)

__all__ = ["Finding", "Lesson", "Table", "all_lessons", "explain", "register_lesson"]
