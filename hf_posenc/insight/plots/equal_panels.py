"""Panels that would be identical are drawn once, under all their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hf_posenc.insight.plots.marks import labelled
from hf_posenc.insight.plots.registry import Sheet

HEAD = "head"


def drawn_once(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Sheets of which those that are equal are one, labelled with all names."""
    groups: dict[Any, list[Sheet]] = {}
    for sheet in sheets:
        groups.setdefault(content_of(sheet), []).append(sheet)
    return [joined(group) for group in groups.values()]


def content_of(sheet: Sheet) -> tuple[Any, ...]:
    """What a panel shows, hashable; the number of the head is part of its name."""
    return tuple((name, hashable(value)) for name, value in sheet.numbers.items() if name != HEAD)


def hashable(value: Any) -> Any:
    """A tensor by its shape and bytes, which are equal where NaN is; anything else by what it reads as."""
    return (value.shape, value.numpy().tobytes()) if isinstance(value, Tensor) else repr(value)


def joined(sheets: Sequence[Sheet]) -> Sheet:
    """One sheet for several that are equal."""
    first = sheets[0]
    if len(sheets) == 1:
        return first
    heads = [sheet.numbers.get(HEAD) for sheet in sheets]
    if None not in heads and len({sheet.label for sheet in sheets}) == 1:
        return Sheet(first.label, {**first.numbers, HEAD: run_of(heads)})
    label = ", ".join(dict.fromkeys(map(labelled, sheets)))
    return Sheet(label, {name: value for name, value in first.numbers.items() if name != HEAD})


def run_of(heads: Sequence[Any]) -> str:
    """Numbers as ``0–7``, or one by one where some are missing between them."""
    following = list(heads) == list(range(heads[0], heads[0] + len(heads)))
    return f"{heads[0]}–{heads[-1]}" if following and len(heads) > 2 else ", ".join(map(str, heads))
