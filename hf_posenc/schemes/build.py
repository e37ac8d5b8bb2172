"""Build the scheme of a specification for a model, and refuse what has no meaning there."""

from __future__ import annotations

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import (
    OptionOutOfRange,
    SchemeNotDefined,
)
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.composition import Composition
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.spec import Plan


def build(chosen: Plan, geometry: Geometry, model: str) -> Scheme:
    """The scheme of a plan for a model: composed, and put on top of the host's rotation where it keeps that.

    Raises:
        SchemeNotDefined: a part has no meaning on this model.
        CannotCombine: two parts would occupy the same place.
        OptionOutOfRange: the scheme ends before the target length.
    """
    parts = [cls(geometry, **options) for cls, options in chosen.parts]
    if not any(p.replaces_host for p in parts) and geometry.rotary is not None:
        parts.insert(0, HostRotation(geometry, geometry.rotary))
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
    """Number of positions a scheme can read on its host; None where there is no end."""
    by_row = (not scheme.replaces_host or scheme.keeps_table) and not implements(scheme, "read_table")
    ends = (scheme.longest, scheme.geometry.table if by_row else None)
    return min((end for end in ends if end is not None), default=None)


def _check_defined(part: Scheme, whole: Scheme, geometry: Geometry, model: str) -> None:
    record = part.record
    rotates = implements(whole, "rotation") or implements(whole, "row_rotation")
    if part.needs_causal and not geometry.causal:
        raise SchemeNotDefined(
            f"Scheme {record.name!r} is not defined for this {model} model: it needs a decoder, which reads from left "
            f"to right. {_where_defined(record.models)}"
        )
    if part.needs_rotation and not rotates:
        raise SchemeNotDefined(
            f"Scheme {record.name!r} is not defined for {model}: it changes a rotation, and {model} has none. "
            f'Bring one along, as in "rope+{record.name}". {_where_defined(record.models)}'
        )
    if part.needs_relative and not rotates and not implements(whole, "bias"):
        raise SchemeNotDefined(
            f"Scheme {record.name!r} is not defined for {model}: {record.undefined}. "
            f'Bring one along, as in "rope+{record.name}". {_where_defined(record.models)}'
        )
    if part.needs_table and geometry.table is None:
        raise SchemeNotDefined(
            f"Scheme {record.name!r} is not defined for {model}: it works on a learned position table, and {model} has "
            f"none. {_where_defined(record.models)}"
        )
    if part.needs_function and geometry.table is not None and (not whole.replaces_host or whole.keeps_table):
        raise SchemeNotDefined(
            f"Scheme {record.name!r} is not defined for {model}: {record.undefined}. "
            f'Bring a function of position along, as in "rope+{record.name}". {_where_defined(record.models)}'
        )
    excused = part.needs_rotation or part.needs_causal or part.needs_relative or part.needs_function
    if record.models and model not in record.models and not excused and not isinstance(part, HostRotation):
        raise SchemeNotDefined(
            f"Scheme {record.name!r} is not defined for {model}: {record.undefined}. {_where_defined(record.models)}"
        )


def _where_defined(models: tuple[str, ...]) -> str:
    return f"It is defined for {', '.join(models)}; `hf-posenc list` shows what is defined here."
