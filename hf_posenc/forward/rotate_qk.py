"""Rotate queries and keys: each region of a scheme has its own positions, and regions that agree share a key copy.

`region_rotations` depend on positions alone and are computed once for all layers. `rotate_regions` applies them to the
tensors of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import PositionMap, Region, at_zero, value_of
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
        query, key = cos_sin_of(scheme, number, region, rotation, ctx)
        if key_ctx is not None:
            _, key = cos_sin_of(scheme, number, region, rotation, key_ctx)
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
    scheme: Scheme, number: int, region: Region, rotation: Rotation, ctx: PositionContext
) -> tuple[Table, Table]:
    """Cosines and sines of queries and keys in one region of a scheme."""
    query_at, key_at = region.query_bands_at or region.query_at, region.key_bands_at or region.key_at
    remaps = rotation.axes is None or region.bands > 0
    of_query = partial(_cos_sin, scheme, rotation, query_at if remaps else None, region.query_decay_steps, ctx)
    of_key = partial(_cos_sin, scheme, rotation, key_at if remaps else None, region.key_decay_steps, ctx)
    one_table = not region.remaps and not rotation.decay
    if rotation.learned:  # layers must not share values with a gradient
        query = of_query(ctx.query_positions)
        return query, query if one_table else of_key(ctx.query_positions)

    def table_at(place: PositionMap, make: Callable[[Tensor], Table]) -> Table:
        if ctx.first is None or not remaps or rotation.decay or is_traced():
            return make(ctx.query_positions)
        return scheme.tables.rows(
            (value_of(place), rotation), ctx.first, ctx.query_positions.shape[1], ctx.device, make
        )

    # Schemes of different layers may rotate equally and remap differently: a table belongs to one scheme object.
    query = ctx.once((id(scheme.original), number, "query"), lambda: table_at(query_at, of_query))
    if one_table:
        return query, query
    return query, ctx.once((id(scheme.original), number, "key"), lambda: table_at(key_at, of_key))


def _cos_sin(
    scheme: Scheme,
    rotation: Rotation,
    remap: PositionMap | None,
    decay_steps: PositionMap,
    ctx: PositionContext,
    positions: Tensor,
) -> Table:
    """Cosines and sines at remapped positions; without ``remap`` at coordinates of the caller or the scheme."""
    if remap is not None:
        places: Tensor = remap(positions)
    elif ctx.coordinates is not None and not implements(scheme, "coordinates"):
        places = ctx.coordinates
    else:
        places = scheme.coordinates(positions, ctx.coordinates)
    return table(rotation, places, decay_steps(positions))


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
