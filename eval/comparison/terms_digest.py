"""Digest of what a scheme computes on a few positions of a model: rotation, remapped positions, mask, biases, scales.

It sees what the code alone does not show: a table that is read from a file, a constant set at run time. Values are
compared to `DIGITS` significant digits: float32 has seven, and the last of them differ between processors. On one
machine a value is the same every time; on another, one that falls between two roundings costs a measurement, never a
stale number. What depends on the tokens' content has no terms of its own: there the code decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import BlockBias, KeyBias, RowRotation, Terms, ToeplitzBias
from hf_posenc.eval.comparison.identity import digest_of
from hf_posenc.schemes.base import Scheme

DIGITS = 4
NEGLIGIBLE = 1e-5
"""Values smaller than this part of the largest of a term count as zero: cancellation leaves noise of this size."""


def terms_digest(schemes: Iterable[Scheme]) -> str:
    """Digest of the terms of the schemes of a model's layers; one that several layers share is taken once."""
    each = {id(scheme): scheme for scheme in schemes}
    with torch.no_grad():
        return digest_of(json.dumps([realised(scheme) for scheme in each.values()]))


def realised(scheme: Scheme) -> dict[str, Any]:
    """The terms of a scheme at `positions` as JSON values; those that need tokens are left out."""
    at = positions(scheme.geometry)
    hooks = {
        "rotation": scheme.rotation,
        "embed": lambda: scheme.embed(at),
        "reposition": lambda: scheme.reposition(at, training=False),
        "terms": lambda: scheme.terms(context(scheme.geometry, at)),
    }
    found: dict[str, Any] = {}
    for name, hook in hooks.items():
        try:
            found[name] = described(hook(), at)
        except Exception as error:  # of other people's code, or of a hook that needs tokens
            found[name] = type(error).__name__
    return found


def positions(geometry: Geometry) -> Tensor:
    """Positions of the first tokens, around the trained length, and up to the target length, ``[1, n]``."""
    trained, target = geometry.trained_length, geometry.target_length
    near = {0, 1, 2, 3, 7, trained // 8, trained // 4, trained // 2, trained - 1, trained, trained + 1}
    far = {(trained + target) // 2, target - 2, target - 1}
    return torch.tensor([sorted(at for at in near | far if 0 <= at < max(target, 2))])


def context(geometry: Geometry, at: Tensor) -> PositionContext:
    """An attention call of tokens at positions that are not consecutive."""
    return PositionContext(query_positions=at, key_positions=at, causal=geometry.causal, contiguous=False)


def described(value: Any, at: Tensor) -> Any:
    """A term as JSON values: tensors rounded, functions of positions by their values at ``at``."""
    if isinstance(value, Tensor):
        return rounded(value)
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, (tuple, list)):
        return [described(inner, at) for inner in value]
    if isinstance(value, Rotation):
        return described([value.frequencies, value.layout, value.axes, value.decay, value.values, value.amplitude], at)
    if isinstance(value, Band):
        return repr(value)
    if isinstance(value, Region):
        maps = (value.query_at, value.key_at, value.query_decay_steps, value.key_decay_steps)
        return [repr(value.band), described(value.rotation, at), *(described(mapped(at), at) for mapped in maps)]
    if isinstance(value, RowRotation):
        lengths = value.length_of(at)
        return [rounded(lengths), *(described(value.rotation_of(int(n)), at) for n in lengths.unique())]
    if isinstance(value, KeyBias):
        return rounded(value.values)
    if isinstance(value, ToeplitzBias):
        return rounded(value.of_distance(at[0, :, None] - at[0, None, :]))
    if isinstance(value, BlockBias):
        return "content"
    if isinstance(value, Terms):
        return {name: described(inner, at) for name, inner in vars(value).items()}
    return value if isinstance(value, (bool, int, str, type(None))) else type(value).__name__


def rounded(values: Tensor) -> list[str]:
    """Values in `DIGITS` significant digits."""
    flat = values.detach().double().cpu().flatten()
    finite = flat[flat.isfinite()].abs()
    least = NEGLIGIBLE * float(finite.max()) if len(finite) else 0.0
    return ["0" if abs(value) <= least else f"{value:.{DIGITS}g}" for value in flat.tolist()]
