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
    """Up to `TOKENS` positions ``[1, n]`` spread evenly over ``reach`` tokens, from the first to the last."""
    return torch.linspace(0, reach - 1, min(TOKENS, reach)).round().long().unique()[None]


def differs_from_host(scheme: Scheme, positions: Tensor, geometry: Geometry, window: int | None = None) -> bool:
    """Whether the scheme's values at these positions differ from those of the unpatched layer of this geometry.

    ``window`` is the layer's own sliding window: the most keys that a query sees, or None for all.
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
    visible_keys = span if window is None else min(span, window)
    rotation = without_equal_axes(scheme, rotation, positions)
    scales = [scale for scale in (terms.query_scale, terms.row_scale) if scale is not None]
    return (
        abs(terms.logit_scale - (rotary.logit_scale if rotary else 1.0)) > 1e-6  # the model's is measured in float32
        or any(bool((scale - 1).abs().max() > 1e-6) for scale in scales)
        or (terms.visible != EVERYTHING and (terms.visible.farthest or visible_keys) < visible_keys)
        or changes_angles(terms.regions, positions, rotation, original_rotation, causal=geometry.causal)
        or (scheme.replaces_host and not scheme.keeps_table and geometry.table is not None)
        or (scheme.replaces_host and geometry.biased)
    )


def changes_bias(scheme: Scheme, ctx: PositionContext, geometry: Geometry) -> bool:
    """Whether the scheme changes the bias of the scores, compared with the model's own linear bias or none."""
    keeps_own = any(isinstance(part, HostRotation) for part in scheme.schemes)
    added = [part for part in scheme.schemes if overrides(part, "bias") and not isinstance(part, HostRotation)]
    added = [part for part in added if not part.silent_at_first]
    if not added:
        return geometry.slopes is not None and not keeps_own
    if geometry.slopes is None or keeps_own or len(added) > 1:
        return True
    slopes = getattr(added[0].bias(ctx), "slopes", None)
    own = ctx.constant(geometry.slopes)
    return slopes is None or not torch.allclose(slopes.detach().to(own), own, rtol=1e-6, atol=0.0)


def shows_silent_terms(scheme: Scheme) -> bool:
    """Whether a bias or a sink that has no effect at first may change outputs, by an unknown amount.

    Such a bias is zero until it is trained. The weight of a sink depends on the other scores of the query.
    """
    silent = [part for part in scheme.schemes if part.silent_at_first]
    weights = [weight.detach() for part in silent for weight in part.parameters()]
    trained = (weight.is_meta or bool(weight.any()) for weight in weights)  # offloaded weights are on the meta device
    return any(part.sink() is not None for part in silent) or any(trained)


def changes_queries_or_keys(part: Scheme) -> bool:
    """Whether the scheme adds an attention sink, or changes queries and keys before they are rotated."""
    geometry = part.geometry
    query, key = (torch.ones(1, heads, 1, geometry.head_dim) for heads in (geometry.heads, geometry.kv_heads))
    prepared = part.prepare(query, key)
    adds_sink = part.sink() is not None and not part.silent_at_first
    return adds_sink or prepared[0] is not query or prepared[1] is not key


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
    """The rotation without its axes, if all coordinates of these positions equal the positions themselves."""
    if rotation is None or rotation.axes is None:
        return rotation
    axes_equal = bool((scheme.coordinates(positions, None) == positions[..., None]).all())
    return replace(rotation, axes=None) if axes_equal else rotation


def same_rotation(one: Rotation | None, two: Rotation | None) -> bool:
    """Whether two rotations are equal up to the float32 rounding of their frequencies. Axes must be equal too."""
    if one is None or two is None:
        return one is two
    shapes = [replace(rotation, frequencies=(), amplitude=1.0) for rotation in (one, two)]
    alike = one.dims == two.dims and shapes[0] == shapes[1]
    alike = alike and abs(one.amplitude - two.amplitude) <= 1e-6 * two.amplitude
    pairs = zip(one.numbers, two.numbers, strict=alike)
    return alike and all(abs(a - b) <= 1e-6 * abs(b) + 1e-24 for a, b in pairs)  # 1e-24: pairs that are not rotated


def changes_angles(
    regions: tuple[Region, ...], positions: Tensor, rotation: Rotation | None, own: Rotation | None, *, causal: bool
) -> bool:
    """Whether some pair of query and key gets another distance than that of its tokens, another rotation, or a mask.

    ``own`` is the rotation of the unpatched model.
    """
    query, key = positions[:, :, None], positions[:, None, :]
    remaining = Band(0, None).holds(query, key) if causal else torch.ones_like(query - key, dtype=torch.bool)
    for region in regions:
        in_region = remaining & region.band.holds(query, key)
        rotates_anew = not same_rotation(region.rotation or rotation, own) or any(f != 1 for f in region.by_head)
        if bool((in_region & (changes_distance(region, positions) | rotates_anew)).any()):
            return True
        remaining = remaining & ~in_region
    return bool(remaining.any())


def changes_distance(region: Region, positions: Tensor) -> Tensor:
    """Whether a region changes the distance of each query and key, in some band of frequencies; bool."""
    distance = positions[:, :, None] - positions[:, None, :]
    if region.query_bands_at is None or region.key_bands_at is None:
        return region.query_at(positions)[:, :, None] - region.key_at(positions)[:, None, :] != distance
    by_band = region.query_bands_at(positions)[:, :, None] - region.key_bands_at(positions)[:, None, :]
    return (by_band != distance[..., None]).any(-1)
