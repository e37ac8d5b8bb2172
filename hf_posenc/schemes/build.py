"""Build the scheme of a specification for a model, and refuse what has no meaning there."""

from __future__ import annotations

from hf_posenc.core.geometry import Geometry
from hf_posenc.core.record import NEEDS
from hf_posenc.errors import (
    OptionOutOfRange,
    SchemeNotDefined,
)
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.composition import Composition
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.spec import Plan


def build(chosen: Plan, geometry: Geometry, model: str, own: Scheme | None = None) -> Scheme:
    """The scheme of a plan for a model: composed, and placed on top of the model's own positions where it keeps them.

    Args:
        chosen: the plan.
        geometry: of the model.
        model: its name, for messages.
        own: the model's own positions as a scheme; by default its rotation.

    Raises:
        SchemeNotDefined: a part has no meaning on this model.
        CannotCombine: two parts use the same hook.
        OptionOutOfRange: the scheme supports fewer positions than the target length.
    """
    own = HostRotation(geometry) if own is None else own
    parts = [own if cls is HostRotation else cls(geometry, **options) for cls, options in chosen.parts]
    on_own_positions = not any(part.replaces_host or part is own for part in parts)
    if on_own_positions and (geometry.rotary is not None or geometry.biased):
        parts.insert(0, own)
    scheme = parts[0] if len(parts) == 1 else Composition(parts)
    for part in parts:
        _check_defined(part, scheme, geometry, model)
    end = reach_of(scheme)
    if end is not None and end < geometry.target_length:
        raise OptionOutOfRange(
            f"Scheme {chosen.name!r} ends after {end} positions, but the target length is {geometry.target_length}. "
            f"Ask for at most {end}, or use a scheme that has no end."
        )
    return scheme


def reach_of(scheme: Scheme) -> int | None:
    """Number of positions a scheme supports on its model; None where there is no limit."""
    by_row = (not scheme.replaces_host or scheme.keeps_table) and not implements(scheme, "read_table")
    ends = (scheme.longest, scheme.geometry.table if by_row else None)
    return min((end for end in ends if end is not None), default=None)


UNMET = {
    "causal": "it needs a decoder, and this model attends in both directions. Use a causal model",
    "rotation": 'it changes a rotation, and this model has none. Bring one along, as in "rope+{name}"',
    "relative": "it changes distances, and this model has neither a rotation nor a distance bias. "
    'Bring one along, as in "rope+{name}"',
    "function": "its positions fall between the rows of this model's position table, which stays in use. "
    'Bring a function of position along, as in "rope+{name}"',
    "table": "it extends a learned position table, and this model has none. Use a model that has one",
}
"""Reason and remedy of each unmet need; see `hf_posenc.core.record.NEEDS`."""


def _check_defined(part: Scheme, whole: Scheme, geometry: Geometry, model: str) -> None:
    """Refuse a part whose needs neither the model nor another part meets."""
    rotates = implements(whole, "rotation") or implements(whole, "row_rotation")
    reads_table = geometry.table is not None and (not whole.replaces_host or whole.keeps_table)
    met = {
        "causal": geometry.causal,
        "rotation": rotates,
        "relative": rotates or implements(whole, "bias"),
        "function": not reads_table,
        "table": geometry.table is not None,
    }
    for need in NEEDS:
        if getattr(part, f"needs_{need}") and not met[need]:
            record, why = part.record, UNMET[need].format(name=part.record.name)
            raise SchemeNotDefined(
                f"Scheme {record.name!r} is not defined for this {model} model: {why}. "
                f"It is defined for {record.defined_for}; `hf-posenc list` shows what is defined where."
            )
