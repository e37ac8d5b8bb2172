"""Build the scheme of a specification for a model, and refuse what has no meaning there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.record import NEEDS
from hf_posenc.errors import CannotCombine, OptionOutOfRange, SchemeNotDefined
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.composition import Composition
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.spec import Plan, changed_options


def build(
    plan: Plan, geometry: Geometry, model: str, own_positions: Callable[[Geometry], Scheme] = HostRotation
) -> Scheme:
    """Build the scheme of a plan for a model, composed with the model's own positions if these stay in use.

    Args:
        plan: the plan.
        geometry: geometry of the model.
        model: name of the model, for messages.
        own_positions: function from a geometry to the model's own positions as a scheme.

    Raises:
        SchemeNotDefined: a part has no meaning on this model.
        CannotCombine: two parts use the same hook.
        OptionOutOfRange: the scheme supports fewer positions than the target length.
    """
    if builds_on_host(plan) and geometry.rotary is not None:
        geometry = replace(geometry, on_host=True)
    own = own_positions(geometry)
    parts = [own if cls is HostRotation else instance_of(cls, geometry, options) for cls, options in plan.parts]
    on_own_positions = not any(part.replaces_host or part is own for part in parts)
    if on_own_positions and geometry.relative:
        parts.insert(0, own)
    scheme = parts[0] if len(parts) == 1 else Composition(parts, plan.name)
    if isinstance(scheme, Composition) and not plan.stored:
        scheme.check_effects()
    for part in parts:
        _check_defined(part, scheme, geometry, model)
    _check_amplitude(scheme, geometry)
    if scheme.caches_one_key:
        check_one_key(scheme)
    end = positions_supported(scheme)
    if end is not None and end < geometry.target_length:
        raise OptionOutOfRange(
            f"Scheme {plan.name!r} ends after {end} positions, but the target length is {geometry.target_length}. "
            f"Ask for at most {end}, or use a scheme that has no end."
        )
    return scheme


def instance_of(cls: type[Scheme], geometry: Geometry, options: Mapping[str, Any]) -> Scheme:
    """An instance of a scheme that records its changed options."""
    scheme = cls(geometry, **options)
    scheme.changed_options = changed_options(cls, options)
    return scheme


def builds_on_host(plan: Plan) -> bool:
    """Whether a plan stretches the model's own frequencies, like ``"host+yarn"``."""
    has_host = any(issubclass(cls, HostRotation) for cls, _ in plan.parts)
    return has_host and any(cls.stretches for cls, _ in plan.parts)


def replaces_rotation(plan: Plan, geometry: Geometry) -> bool:
    """Whether a plan has a rotation that replaces the model's own."""
    if builds_on_host(plan):
        return False
    for cls, options in plan.parts:
        may_rotate = cls.rotation is not Scheme.rotation or cls.row_rotation is not Scheme.row_rotation
        if cls.replaces_host and may_rotate and rotates(cls(geometry, **options)):  # its options may say otherwise
            return True
    return False


def rotates(scheme: Scheme) -> bool:
    """Whether a scheme rotates queries and keys."""
    return implements(scheme, "rotation") or implements(scheme, "row_rotation")


def positions_supported(scheme: Scheme) -> int | None:
    """Number of positions a scheme supports on its model; None for no limit."""
    reads_rows = (not scheme.replaces_host or scheme.keeps_table) and not implements(scheme, "read_table")
    ends = (scheme.longest, scheme.geometry.table if reads_rows else None)
    return min((end for end in ends if end is not None), default=None)


def _check_amplitude(scheme: Scheme, geometry: Geometry) -> None:
    """Refuse to stretch by length a rotation whose amplitude scales part of each head, which no such rotation keeps."""
    own = geometry.rotary if geometry.on_host else None
    if own is not None and own.rotation.amplitude != 1 and implements(scheme, "row_rotation"):
        raise SchemeNotDefined(
            f"Scheme {scheme.shown_name!r} is not defined for this model, whose own scaling multiplies the rotated "
            'channels of each head alone. Use a scheme that does not follow the length, such as "host+yarn".'
        )


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
    rotated = rotates(whole)
    reads_table = geometry.table is not None and (not whole.replaces_host or whole.keeps_table)
    met = {
        "causal": geometry.causal,
        "rotation": rotated,
        "relative": rotated or implements(whole, "bias"),
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


def check_one_key(scheme: Scheme) -> None:
    """Refuse ``key_cache="one"`` in a composition with one copy anyway, or whose rotation cannot make the others."""
    rotation = scheme.rotation()
    if rotation is None:
        raise CannotCombine(
            f"key_cache='one' has no effect in {scheme.shown_name!r}, which rotates nothing: there is one copy of "
            "each key in any case. Leave the option out."
        )
    token = torch.zeros(1, 1, dtype=torch.long, device="cpu")  # weights that are loaded later have the device "meta"
    regions = scheme.regions(PositionContext(token, token, causal=scheme.geometry.causal, contiguous=True))
    if rotation.learned:
        reason = "has frequencies that are trained"
    elif rotation.decay:
        reason = "scales keys by their position"
    elif rotation.axes is not None:
        reason = "has positions with several axes"
    elif any(region.rotation is not None for region in regions):
        reason = "differs from region to region"
    else:
        return
    raise CannotCombine(
        f"key_cache='one' rotates cached keys from one position to another, and the rotation of "
        f"{scheme.shown_name!r} {reason}. Use key_cache='copies'."
    )
