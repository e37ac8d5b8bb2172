"""Registry of properties by name, in table order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hf_posenc.insight.properties.cell import PropertyValue
from hf_posenc.insight.properties.target import PropertyTarget

Measure = Callable[[PropertyTarget], PropertyValue]


@dataclass(frozen=True)
class Property:
    """A registered property of positional schemes.

    Attributes:
        name: one word, the key in tables.
        question: the question it answers.
        number: format of the number that decides, with what it is, such as ``least difference {:.2g}``.
        measure: measures it on a target.
    """

    name: str
    question: str
    number: str
    measure: Measure

    def cell(self, target: PropertyTarget) -> PropertyValue:
        """Measure it; the number is named as the cell has it, or as the property does."""
        found = self.measure(target)
        return replace(found, number=found.number or self.number)


PROPERTIES: dict[str, Property] = {}


def register_property(name: str, question: str, number: str = "{:.2g}") -> Callable[[Measure], Measure]:
    """Register the decorated function as the measurement of a property.

    Raises:
        ValueError: there is a property of that name already.
    """

    def decorate(measure: Measure) -> Measure:
        if name in PROPERTIES:
            raise ValueError(f"There is a property {name!r} already. Choose another name.")
        PROPERTIES[name] = Property(name, question, number, measure)
        return measure

    return decorate
