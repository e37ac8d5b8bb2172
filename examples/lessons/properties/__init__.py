"""Properties of positional encodings, measured on the schemes that models run.

    $ python examples/lessons/properties rope alibi

    from properties import measure
    table = measure(["sinusoidal", "rope", "alibi"])
    table["rope"]["relative"]                # PropertyValue(holds=True, value=8e-08, explanation='…')

Every property is a function of a `PropertyTarget`, which provides the codes of a scheme and the logits of an attention
layer with this scheme. Properties are measured on outputs; none depends on the name or kind of a scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.insight.plots.models import Kind
from hf_posenc.schemes.spec import SchemeSpec
from properties import extrapolation, translation, uniqueness
from properties.target import PropertyTarget, PropertyValue, targets

__all__ = ["PROPERTIES", "Property", "PropertyTarget", "PropertyValue", "measure", "targets"]


@dataclass(frozen=True)
class Property:
    """A property of positional schemes.

    Attributes:
        name: one word, the key in tables.
        question: the question it answers.
        number: format of the deciding number with its meaning, such as ``least difference {:.2g}``.
        of: function that measures it on a target.
    """

    name: str
    question: str
    number: str
    of: Callable[[PropertyTarget], PropertyValue]

    def measure(self, target: PropertyTarget) -> PropertyValue:
        """Measure the property; its own format of the number is used unless the value has one."""
        with fixed_seed(0):  # of schemes that draw positions
            value = self.of(target)
        return replace(value, number=value.number or self.number)


PROPERTIES = {
    one.name: one
    for one in (
        Property("unique", "Has every position its own code?", "smallest difference {:.2g}", uniqueness.unique),
        Property("same", "Is a code the same in every text?", "differs by {:.2g}", uniqueness.same),
        Property("linear", "Does one linear map shift all codes by k?", "residual {:.2g}", translation.linear),
        Property("relative", "Does the score depend only on distance?", "differs by {:.2g} std", translation.relative),
        Property("beyond", "Is it defined beyond the trained length?", "to position {:,.0f}", extrapolation.beyond),
        Property("deterministic", "Do two calls give the same result?", "differs by {:.2g}", uniqueness.deterministic),
        Property("axes", "Does it work in two dimensions?", "differs by {:.2g}", uniqueness.axes),
        Property("bounded", "Does it stay bounded as positions grow?", "grows {:.2g}-fold", extrapolation.bounded),
        Property(
            "continuous", "Do nearby positions have similar codes?", "moves by {:.2g} of a step",
            extrapolation.continuous,
        ),
        Property("decays", "Does the score fall with distance?", "rank correlation {:.2f}", extrapolation.decays),
        Property(
            "equal_gaps", "Is a step the same in texts of 3 and 4?", "steps differ by {:.2g}",
            uniqueness.equal_gaps,
        ),
        Property("direction", "Does it distinguish before from after?", "differs by {:.2g}", extrapolation.direction),
    )
}  # fmt: skip
"""All properties by name, in the order of tables."""

Request: TypeAlias = "SchemeSpec | tuple[SchemeSpec, Mapping[str, Any]]"
"""A scheme, or a pair of a scheme and its options."""


def measure(schemes: Iterable[Request], *, model: Kind | None = None) -> dict[str, dict[str, PropertyValue]]:
    """Measure every property of every scheme; returns the values by scheme and property.

    Args:
        schemes: as for `hf_posenc.patch_model`, or pairs of such a scheme and its options.
        model: type of a model; by default the first of ``llama``, ``gpt2``, ``bert`` for which a scheme is defined.

    Raises:
        PosEncError: a scheme or an option is unknown, or the scheme is not defined for the model.
    """
    return {
        target.name: {one.name: one.measure(target) for one in PROPERTIES.values()}
        for request in schemes
        for target in targets(*spec_and_options(request), model=model)
    }


def spec_and_options(request: Request) -> tuple[SchemeSpec, Mapping[str, Any]]:
    """Split a requested scheme into specification and options."""
    if isinstance(request, tuple) and len(request) == 2 and isinstance(request[1], Mapping):
        return request[0], request[1]
    return cast("SchemeSpec", request), {}
