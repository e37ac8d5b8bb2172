"""RULER's string match: whether a generated text contains the answers, ignoring case.

    match = share of the answers that occur in the text        part = 1 if any of them does

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence


def found(text: str, answers: Sequence[str]) -> list[bool]:
    """Which answers occur in ``text``."""
    lowered = text.lower()
    return [answer.lower() in lowered for answer in answers]
