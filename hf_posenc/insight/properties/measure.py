"""Measure the properties of schemes, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from hf_posenc.insight.properties import (
    axes,
    cost,
    distance,
    extrapolation,
    translation,
    uniqueness,
)
from hf_posenc.insight.properties.cell import PropertyValue
from hf_posenc.insight.properties.registry import PROPERTIES, Property
from hf_posenc.insight.properties.target import PropertyTarget, targets
from hf_posenc.schemes.spec import SchemeSpec

MODULES = (uniqueness, translation, extrapolation, axes, distance, cost)
"""Modules that register the properties on import."""

ORDER = (
    "unique", "same", "linear", "relative", "beyond", "deterministic", "axes", "bounded", "continuous", "decays",
    "equal_gaps", "direction", "cost",
)  # fmt: skip


Asked: TypeAlias = "SchemeSpec | tuple[SchemeSpec, Mapping[str, Any]]"


def measure(
    schemes: Iterable[Asked], *, model: str | None = None, progress: Callable[[str], None] = lambda name: None
) -> dict[str, dict[str, PropertyValue]]:
    """Measure every property of every scheme; cells by scheme and property.

    Args:
        schemes: as for `hf_posenc.patch_model`, or pairs of such a scheme and its options.
        model: type of a model; by default the first of ``llama``, ``gpt2``, ``bert`` that a scheme is defined for.
        progress: called with every scheme's name.

    Raises:
        PosEncError: a scheme or option is not known, or the scheme is not defined for the model.
    """
    table = {}
    for target in chosen(schemes, model):
        progress(target.name)
        table[target.name] = row(target)
    return table


def chosen(schemes: Iterable[Asked], model: str | None = None) -> list[PropertyTarget]:
    """Targets of the requested schemes."""
    return [target for asked in schemes for target in targets(*spec_and_options(asked), model=model)]


def spec_and_options(asked: Asked) -> tuple[SchemeSpec, Mapping[str, Any]]:
    """Split a requested scheme into specification and options."""
    if isinstance(asked, tuple) and len(asked) == 2 and isinstance(asked[1], Mapping):
        return asked[0], asked[1]
    return cast("SchemeSpec", asked), {}


def row(target: PropertyTarget) -> dict[str, PropertyValue]:
    """All properties of one target."""
    return {one.name: one.cell(target) for one in list_properties()}


def list_properties() -> list[Property]:
    """The properties as they are shown; those registered by others come last."""
    return [PROPERTIES[name] for name in dict.fromkeys((*ORDER, *PROPERTIES))]
