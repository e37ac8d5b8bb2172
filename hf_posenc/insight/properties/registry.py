"""Registry of properties by name, in table order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_posenc.insight.properties.cell import Cell
from hf_posenc.insight.properties.target import Target

Measure = Callable[[Target], Cell]


@dataclass(frozen=True)
class Property:
    """A registered property of positional schemes.

    Attributes:
        name: one word, the key in tables.
        question: the question it answers.
        measure: measures it on a target.
    """

    name: str
    question: str
    measure: Measure


PROPERTIES: dict[str, Property] = {}


def register_property(name: str, question: str) -> Callable[[Measure], Measure]:
    """Register the decorated function as the measurement of a property.

    Raises:
        ValueError: there is a property of that name already.
    """

    def decorate(measure: Measure) -> Measure:
        if name in PROPERTIES:
            raise ValueError(f"There is a property {name!r} already. Choose another name.")
        PROPERTIES[name] = Property(name, question, measure)
        return measure

    return decorate
