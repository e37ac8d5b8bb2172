"""What a scheme claims about positions: that only distances matter, that absolute positions matter, or neither.

Read from its terms. Rotations and biases of distance (`ToeplitzBias`) claim the first by construction; remapped
positions and bands claim it if they are equal for a shifted text. Embeddings and position tables claim the second.
Scales and content biases claim neither.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.core.terms import BlockBias, KeyBias
from hf_posenc.patching.reference_attention import ReferenceTerms, in_band
from hf_posenc.schemes.base import implements

Claim = Literal["distance", "position"] | None
TOLERANCE = 1e-4


def claim_of(unshifted: list[ReferenceTerms], *shifted: list[ReferenceTerms]) -> Claim:
    """Claim of a model's scheme, from the terms of all layers for one text at several offsets; None for neither."""
    if any(implements(one.scheme, "embed") or _reads_table(one) for one in unshifted):
        vanishing = any(getattr(part, "may_vanish", False) for part in unshifted[0].scheme.schemes)
        return None if vanishing else "position"
    distance_only = (
        _same_up_to_shift(one, two) for terms in shifted for one, two in zip(unshifted, terms, strict=True)
    )
    return "distance" if all(distance_only) else None


def _reads_table(ref: ReferenceTerms) -> bool:
    scheme = ref.scheme
    return scheme.geometry.table is not None and (scheme.keeps_table or not scheme.replaces_host)


def _same_up_to_shift(one: ReferenceTerms, two: ReferenceTerms) -> bool:
    rotation = one.scheme.rotation()
    if one.terms.row_rotation is not None or (rotation is not None and rotation.axes is not None):
        return False
    if implements(one.scheme, "query_scale") or implements(one.scheme, "row_scale"):
        return False  # piecewise constant scales may be equal at the offsets that were tried
    if any(isinstance(bias, BlockBias) for bias in one.terms.bias) or one.terms.values:
        return False
    return all(_equal(x, y) for x, y in zip(_position_tensors(one), _position_tensors(two), strict=True))


def _position_tensors(ref: ReferenceTerms) -> list[Tensor]:
    """All tensors of the terms that depend on positions: equal for two offsets if only distances matter."""
    terms, ctx = ref.terms, ref.ctx
    query, key = ctx.query_positions[:, :, None], ctx.key_positions[:, None, :]
    ordered = query >= key if ctx.causal else torch.ones_like(query - key, dtype=torch.bool)
    rotation = ref.scheme.rotation()
    decays = rotation is not None and bool(rotation.decay)
    found = [in_band(terms.visible, query, key) & ordered]
    for region in terms.regions:
        mine = in_band(region.band, query, key) & ordered
        distance = region.query_at(query) - region.key_at(key)
        decay_steps = region.query_decay_steps(query) + region.key_decay_steps(key)
        found += [mine, distance.double() * mine, decay_steps.double() * mine * decays]
    for bias in terms.bias:
        found += [bias.values[..., None, :] - bias.values[..., None]] if isinstance(bias, KeyBias) else []
    return found


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and bool((one.double() - two.double()).abs().max() <= TOLERANCE)
