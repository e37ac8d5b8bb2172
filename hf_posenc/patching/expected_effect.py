"""The expected effect of a patch: whether the scheme's values differ from those of the unpatched model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.regions import EVERYTHING, Band, Region
from hf_posenc.schemes.base import Scheme, implements, overrides
from hf_posenc.schemes.host_rotation import HostRotation

TOKENS = 64


def spread_positions(reach: int) -> Tensor:
    """Up to `TOKENS` positions spread over a reach in tokens, the first and the last among them, ``[1, n]``."""
    return torch.linspace(0, reach - 1, min(TOKENS, reach)).round().long().unique()[None]


def differs_from_host(scheme: Scheme, positions: Tensor, geometry: Geometry, window: int | None = None) -> bool:
    """Whether the scheme's values at these positions differ from those of the unpatched layer of this geometry.

    ``window`` is that of the layer itself: keys that a query sees at most; None for all.
    """
    ctx = PositionContext(positions, positions, geometry.causal, contiguous=False)
    if (
        changes_bias(scheme, ctx, geometry)
        or implements(scheme, "values")
        or any(map(changes_queries_or_keys, scheme.schemes))
        or adds_to_embeddings(scheme, positions)
    ):
        return True
    terms = scheme.terms(ctx)
    rotary = geometry.rotary
    original_rotation = rotary.rotation if rotary else None
    rotation = scheme.rotation()
    if terms.row_rotation is not None:
        lengths = terms.row_rotation.length_of(positions).unique().tolist()
        if any(not same_rotation(terms.row_rotation.rotation_of(n), original_rotation) for n in lengths):
            return True
        rotation = original_rotation
    span = int(positions.max()) + 1
    seen = span if window is None else min(span, window)
    rotation = without_equal_axes(scheme, rotation, positions)
    scales = [scale for scale in (terms.query_scale, terms.row_scale) if scale is not None]
    return (
        abs(terms.logit_scale - (rotary.logit_scale if rotary else 1.0)) > 1e-6  # one is measured in float32
        or any(bool((scale - 1).abs().max() > 1e-6) for scale in scales)
        or (terms.visible != EVERYTHING and (terms.visible.farthest or seen) < seen)
        or changes_angles(terms.regions, positions, rotation, original_rotation, causal=geometry.causal)
        or (scheme.replaces_host and not scheme.keeps_table and geometry.table is not None)
        or (scheme.replaces_host and geometry.biased)
    )


def changes_bias(scheme: Scheme, ctx: PositionContext, geometry: Geometry) -> bool:
    """Whether the scheme's biases of scores are others than the model's own linear bias, or none where it has none."""
    kept = any(isinstance(part, HostRotation) for part in scheme.schemes)
    brought = [part for part in scheme.schemes if overrides(part, "bias") and not isinstance(part, HostRotation)]
    brought = [part for part in brought if not part.silent_at_first]
    if not brought:
        return geometry.slopes is not None and not kept
    if geometry.slopes is None or kept or len(brought) > 1:
        return True
    found = getattr(brought[0].bias(ctx), "slopes", None)
    own = ctx.constant(geometry.slopes)
    return found is None or not torch.allclose(found.detach().to(own), own, rtol=1e-6, atol=0.0)


def shows_silent_terms(scheme: Scheme) -> bool:
    """Whether a bias or a sink without effect at first may show; by how much is not known.

    A bias is zero until it is trained; what a sink takes depends on the scores beside it.
    """
    silent = [part for part in scheme.schemes if part.silent_at_first]
    weights = [weight.detach() for part in silent for weight in part.parameters()]
    trained = (weight.is_meta or bool(weight.any()) for weight in weights)  # offloaded ones are on the meta device
    return any(part.sink() is not None for part in silent) or any(trained)


def changes_queries_or_keys(part: Scheme) -> bool:
    """Whether the scheme adds an attention sink, or changes queries and keys before they are rotated."""
    geometry = part.geometry
    query, key = (torch.ones(1, heads, 1, geometry.head_dim) for heads in (geometry.heads, geometry.kv_heads))
    prepared = part.prepare(query, key)
    brings_sink = part.sink() is not None and not part.silent_at_first
    return brings_sink or prepared[0] is not query or prepared[1] is not key


def adds_to_embeddings(scheme: Scheme, positions: Tensor) -> bool:
    """Whether the scheme adds to the embeddings, or reads the model's position table differently."""
    if scheme.embed(positions) is not None:
        return True
    end = scheme.geometry.table
    if not implements(scheme, "read_table") or end is None:
        return False
    table = torch.randn(end, 1, generator=torch.Generator().manual_seed(0))
    within = positions.cpu().clamp(max=end - 1)
    return not torch.equal(scheme.read_table(table, within), table[within])


def without_equal_axes(scheme: Scheme, rotation: Rotation | None, positions: Tensor) -> Rotation | None:
    """The rotation without axes, where all coordinates of these positions equal the positions themselves."""
    if rotation is None or rotation.axes is None:
        return rotation
    one = bool((scheme.coordinates(positions, None) == positions[..., None]).all())
    return replace(rotation, axes=None) if one else rotation


def same_rotation(one: Rotation | None, two: Rotation | None) -> bool:
    """Whether two rotations are equal up to the float32 rounding of their frequencies; several axes never equal one."""
    if one is None or two is None:
        return one is two
    shapes = [replace(rotation, frequencies=(), amplitude=1.0) for rotation in (one, two)]
    alike = one.dims == two.dims and shapes[0] == shapes[1]
    alike = alike and abs(one.amplitude - two.amplitude) <= 1e-6 * two.amplitude
    pairs = zip(one.numbers, two.numbers, strict=alike)
    return alike and all(abs(a - b) <= 1e-6 * abs(b) + 1e-24 for a, b in pairs)  # pairs that are not rotated at all


def changes_angles(
    regions: tuple[Region, ...], positions: Tensor, rotation: Rotation | None, own: Rotation | None, *, causal: bool
) -> bool:
    """Whether some query and key get another distance than their tokens have, or another rotation, or are masked."""
    here, there = positions[:, :, None], positions[:, None, :]
    left = Band(0, None).holds(here, there) if causal else torch.ones_like(here - there, dtype=torch.bool)
    for region in regions:
        mine = left & region.band.holds(here, there)
        turned = not same_rotation(region.rotation or rotation, own) or any(one != 1 for one in region.by_head)
        if bool((mine & (moved_by(region, positions) | turned)).any()):
            return True
        left = left & ~mine
    return bool(left.any())


def moved_by(region: Region, positions: Tensor) -> Tensor:
    """Which queries and keys have another distance in a region than their tokens have, in some band of frequencies."""
    distance = positions[:, :, None] - positions[:, None, :]
    if region.query_bands_at is None or region.key_bands_at is None:
        return region.query_at(positions)[:, :, None] - region.key_at(positions)[:, None, :] != distance
    moved = region.query_bands_at(positions)[:, :, None] - region.key_bands_at(positions)[:, None, :]
    return (moved != distance[..., None]).any(-1)
