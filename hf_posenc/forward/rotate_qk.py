"""Rotate queries and keys: each region of a scheme has its own positions, and regions that agree share a key copy.

`region_rotations` depend on positions alone and are computed once for all layers. `rotate_regions` applies them to the
tensors of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import PositionMap, at_zero, value_of
from hf_posenc.core.rotation import Table, rotate, table
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme, implements


@dataclass(frozen=True)
class RegionRotation:
    """Rotation of queries and keys in one region, with its tables.

    Attributes:
        rotation: rotation of the channels; None if the region rotates nothing.
        query: cos and sin of the queries, each ``[batch or 1, heads or 1, query, dims]``; None without a rotation.
        key: cos and sin of the new keys; None if the keys stay as projected.
        new_copy: whether the region needs its own copy of the keys; else it reads the copy of another region.
        values: whether values are rotated like keys.
    """

    rotation: Rotation | None = None
    query: Table | None = None
    key: Table | None = None
    new_copy: bool = True
    values: bool = False


def region_rotations(
    scheme: Scheme, ctx: PositionContext, key_ctx: PositionContext | None = None, stored: int | None = None
) -> tuple[RegionRotation, ...]:
    """Rotations of queries and keys in every region of a scheme.

    Args:
        scheme: scheme with the regions.
        ctx: its ``query_positions`` are the positions of the queries, and of the keys without ``key_ctx``.
        key_ctx: its ``query_positions`` are the positions of the keys.
        stored: number of the only region whose keys are rotated; None for a copy per different region.
    """
    shared, rotations, copies = rotation_of(scheme, ctx), [], set()
    for number, region in enumerate(scheme.regions(ctx)):
        rotation = region.rotated_by(shared)
        copy = None if rotation is None else region.copy
        new_copy = copy not in copies if stored is None else number == stored
        copies.add(copy)
        if rotation is None:  # only biases read positions
            rotations.append(RegionRotation(new_copy=new_copy))
            continue
        query_at: PositionMap | None = region.query_bands_at or region.query_at
        key_at: PositionMap | None = region.key_bands_at or region.key_at
        if rotation.axes is not None and region.bands == 0:
            query_at = key_at = None
        query = key = cos_sin_of(scheme, ctx, rotation, (number, "query"), query_at, region.query_decay_steps)
        if key_ctx is not None or region.remaps or rotation.decay:
            key = cos_sin_of(scheme, key_ctx or ctx, rotation, (number, "key"), key_at, region.key_decay_steps)
        # Keys at position 0 are neither rotated nor scaled, and stay as projected.
        leaves_zero_alone = rotation.amplitude == 1 and not rotation.decay and rotation.axes is None
        rotates_keys = region.key_at is not at_zero or not leaves_zero_alone
        values = rotation.values and number == 0
        rotations.append(RegionRotation(rotation, query, key if rotates_keys else None, new_copy, values))
    return tuple(rotations)


def rotate_regions(
    regions: tuple[RegionRotation, ...], q: Tensor, k: Tensor, v: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Rotate queries (one tensor per region), keys (one tensor per different copy) and values.

    Args:
        regions: result of `region_rotations`.
        q: ``[batch, heads, query, head_dim]``.
        k: ``[batch, kv_heads, key, head_dim]``; ``v`` has the same shape.
    """
    if any(region.rotation is not None and region.rotation.differs_by_head for region in regions):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    queries, copies = [], []
    for region in regions:
        rotation = region.rotation
        if rotation is None:
            queries.append(q)
            if region.new_copy:
                copies.append(k)
            continue
        queries.append(rotate(q, rotation, region.query))  # type: ignore[arg-type]
        if region.new_copy:
            copies.append(k if region.key is None else rotate(k, rotation, region.key))
        if region.values and region.key is not None:
            v = rotate(v, rotation, region.key)
    return tuple(queries), tuple(copies), v


def cos_sin_of(
    scheme: Scheme,
    ctx: PositionContext,
    rotation: Rotation,
    use: tuple[int, str],
    remap: PositionMap | None,
    decay_steps: PositionMap,
) -> Table:
    """Cosines and sines at the positions of a context's queries, computed once per forward pass unless learned.

    Args:
        scheme: scheme with the rotation.
        ctx: positions, and coordinates of the caller.
        rotation: rotation of a region.
        use: number of the region, and whose positions these are: part of the memo's key.
        remap: position map of the region; None for a rotation along axes, which follows coordinates.
        decay_steps: maps positions to the decay steps of the rotation.
    """

    def at(positions: Tensor) -> Table:
        if remap is not None:
            places = remap(positions)
        elif ctx.coordinates is not None and not implements(scheme, "coordinates"):
            places = ctx.coordinates
        else:
            places = scheme.coordinates(ctx.query_positions, ctx.coordinates)
        return table(rotation, places, decay_steps(positions))

    def make() -> Table:
        positions = ctx.query_positions
        if remap is None or ctx.first is None or rotation.decay or rotation.learned or is_traced():
            return at(positions)
        return scheme.tables.rows((value_of(remap), rotation), ctx.first, positions.shape[1], ctx.device, at)

    if rotation.learned:  # layers must not share values with a gradient
        return make()
    # Schemes of different layers may rotate equally and remap differently: a table belongs to one scheme object.
    return ctx.once((id(scheme.original), *use), make)


def rotation_of(scheme: Scheme, ctx: PositionContext) -> Rotation | None:
    """The rotation of a scheme, computed once per forward pass unless it is learned.

    If the call has coordinates on several axes and the scheme has one, pairs follow the axes of the unpatched model.

    Raises:
        OptionOutOfRange: learned frequencies are not a tensor ``[pairs]``.
    """
    key = (id(scheme.original), "rotation")
    if key in ctx.memo:
        return ctx.memo[key]  # type: ignore[return-value]
    rotation, host = scheme.rotation(), scheme.geometry.rotary
    if ctx.coordinates is not None and rotation is not None and host is not None and host.rotates_by_axes(rotation):
        rotation = replace(rotation, axes=host.axes)
    if rotation is None or not rotation.learned:
        ctx.memo[key] = rotation
    elif isinstance(rotation.frequencies, Tensor) and rotation.frequencies.ndim != 1:
        raise OptionOutOfRange(
            f"The frequencies of scheme {scheme.shown_name!r} have the shape {list(rotation.frequencies.shape)}. "
            "Return one frequency for each pair; for factors by head use Region.by_head."
        )
    return rotation
