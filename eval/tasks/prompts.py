"""Prompts that coincide: where a length leaves room for little filler, different depths are the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REPEATED = "repeated_prompts"
"""Where a task's metadata has, for each length with equal prompts, how many it asks and how many differ."""


def repeated_prompts(documents: Sequence[Mapping[str, Any]], cells: Sequence[Any]) -> dict[str, list[int]]:
    """How many prompts are asked, and how many of them differ, at every length with equal ones.

    Args:
        documents: those with ``prompts``, one for each cell.
        cells: lengths and depths.
    """
    at_length: dict[int, list[str]] = {}
    for document in documents:
        for (length, _), prompt in zip(cells, document.get("prompts", ()), strict=False):
            at_length.setdefault(length, []).append(prompt)
    return {
        str(length): [len(prompts), len(set(prompts))]
        for length, prompts in at_length.items()
        if len(set(prompts)) < len(prompts)
    }
