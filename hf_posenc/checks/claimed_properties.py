"""Whether a scheme claims that distance is all that counts, or that places themselves do; read off its terms.

A bias of distance (`ToeplitzBias`) and a rotation claim the first by what they are; places and bands by giving the same
for a text that begins elsewhere; codes and tables claim the second. Scales and biases of content claim neither.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.checks.reference_attention import ReferenceTerms, inside
from hf_posenc.core.terms import BlockBias, KeyBias
from hf_posenc.schemes.base import implements

Claim = Literal["distance", "place"] | None
EQUAL = 1e-4


def claim_of(here: list[ReferenceTerms], *elsewhere: list[ReferenceTerms]) -> Claim:
    """What the layers of a model claim, from what they say of one text at several places; None for nothing."""
    if any(implements(one.scheme, "embed") or _reads_table(one) for one in here):
        return None if any(getattr(part, "may_vanish", False) for part in here[0].scheme.schemes) else "place"
    alike = (_says_distance(one, two) for there in elsewhere for one, two in zip(here, there, strict=True))
    return "distance" if all(alike) else None


def _reads_table(said: ReferenceTerms) -> bool:
    scheme = said.scheme
    return scheme.geometry.table is not None and (scheme.keeps_table or not scheme.replaces_host)


def _says_distance(one: ReferenceTerms, two: ReferenceTerms) -> bool:
    rotation = one.scheme.rotation()
    if one.terms.rows is not None or (rotation is not None and rotation.axes is not None):
        return False
    if implements(one.scheme, "query_scale") or implements(one.scheme, "row_scale"):
        return False  # steps may be far apart
    if any(isinstance(bias, BlockBias) for bias in one.terms.bias) or one.terms.values:
        return False
    return all(_equal(x, y) for x, y in zip(_of_places(one), _of_places(two), strict=True))


def _of_places(said: ReferenceTerms) -> list[Tensor]:
    """Everything in the terms that positions have a part in: equal for two texts if only distance counts."""
    terms, ctx = said.terms, said.ctx
    query, key = ctx.query_positions[:, :, None], ctx.key_positions[:, None, :]
    ordered = query >= key if ctx.causal else torch.ones_like(query - key, dtype=torch.bool)
    found = [inside(terms.visible, query, key) & ordered]
    for region in terms.regions:
        mine = inside(region.band, query, key) & ordered
        apart = region.query_at(query) - region.key_at(key)
        age = region.query_age(query) + region.key_age(key)
        found += [mine, apart.double() * mine, age.double() * mine * bool(_decays(said))]
    for bias in terms.bias:
        found += [bias.values[..., None, :] - bias.values[..., None]] if isinstance(bias, KeyBias) else []
    return found


def _decays(said: ReferenceTerms) -> tuple[float, ...]:
    rotation = said.scheme.rotation()
    return () if rotation is None else rotation.decay


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and bool((one.double() - two.double()).abs().max() <= EQUAL)
