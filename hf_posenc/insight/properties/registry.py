"""The properties by name, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_posenc.insight.properties.cell import Cell
from hf_posenc.insight.properties.target import Target

Measure = Callable[[Target], Cell]


@dataclass(frozen=True)
class Property:
    """A question about a scheme.

    Attributes:
        name: one word, the key of the table.
        asks: the question, in words.
        of: a subject to its cell.
    """

    name: str
    asks: str
    of: Measure


PROPERTIES: dict[str, Property] = {}


def property_of_schemes(name: str, asks: str) -> Callable[[Measure], Measure]:
    """Register a measurement under ``name``.

    Raises:
        ValueError: there is one of that name.
    """

    def decorate(measure: Measure) -> Measure:
        if name in PROPERTIES:
            raise ValueError(f"There is a property {name!r} already. Choose another name.")
        PROPERTIES[name] = Property(name, asks, measure)
        return measure

    return decorate
