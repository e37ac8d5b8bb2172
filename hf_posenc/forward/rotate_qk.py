"""Rotate queries and keys: each region of a scheme has its own positions, and regions that agree share a key copy.

What depends on positions alone (`region_rotations`, `key_copies`, `query_factor`) is worked out once for all layers
that share it; `rotate_regions`, `copies_of` and `scale` apply it to the tensors of one layer.
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
from hf_posenc.core.terms import Terms
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme, implements


@dataclass(frozen=True)
class RegionRotation:
    """How queries and keys are rotated in one region.

    Attributes:
        rotation: of its channels; None where nothing is rotated.
        query: cos and sin of the queries, each ``[batch or 1, heads or 1, query, dims]``; None without a rotation.
        key: cos and sin of the new keys; None where they stay as they are.
        new_copy: whether its keys are a copy to cache; else it reads that of another region.
        values: whether the values are rotated as its keys are.
    """

    rotation: Rotation | None = None
    query: Table | None = None
    key: Table | None = None
    new_copy: bool = True
    values: bool = False


def region_rotations(
    scheme: Scheme, ctx: PositionContext, of_keys: PositionContext | None = None, stored: int | None = None
) -> tuple[RegionRotation, ...]:
    """How a scheme rotates queries and keys in each of its regions.

    Args:
        scheme: what rotates them.
        ctx: positions of the queries, and of the keys with them.
        of_keys: positions of the keys, as its ``query_positions``, where they are not those of the queries.
        stored: number of the one region whose keys are rotated; None for a copy for each that differs.
    """
    shared, found, copies = rotation_of(scheme, ctx), [], set()
    for number, region in enumerate(scheme.regions(ctx)):
        rotation = region.rotated_by(shared)
        copy = None if rotation is None else region.copy
        new_copy = copy not in copies if stored is None else number == stored
        copies.add(copy)
        if rotation is None:  # only a bias knows the positions
            found.append(RegionRotation(new_copy=new_copy))
            continue
        query, key = cos_sin_of(scheme, number, region, rotation, ctx)
        if of_keys is not None:
            _, key = cos_sin_of(scheme, number, region, rotation, of_keys)
        # Position 0 is then neither rotated nor scaled: its keys are those of the projection.
        leaves_zero_alone = rotation.amplitude == 1 and not rotation.decay and rotation.axes is None
        rotates_keys = region.key_at is not at_zero or not leaves_zero_alone
        values = rotation.values and number == 0
        found.append(RegionRotation(rotation, query, key if rotates_keys else None, new_copy, values))
    return tuple(found)


def rotate_regions(
    regions: tuple[RegionRotation, ...], q: Tensor, k: Tensor, v: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Queries, one tensor a region; the different copies of the keys; and the values.

    Args:
        regions: from `region_rotations`.
        q: ``[batch, heads, query, head_dim]``.
        k: ``[batch, kv_heads, key, head_dim]``; ``v`` likewise.
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


def rotated(
    scheme: Scheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ctx: PositionContext,
    of_keys: PositionContext | None = None,
    stored: int | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Rotate the queries, keys and values of one call: `rotate_regions` by `region_rotations`."""
    return rotate_regions(region_rotations(scheme, ctx, of_keys, stored), q, k, v)


def cos_sin_of(
    scheme: Scheme, number: int, region: Region, rotation: Rotation, ctx: PositionContext
) -> tuple[Table, Table]:
    """Cosines and sines of queries and keys in one region of a scheme."""
    query_at, key_at = region.query_bands_at or region.query_at, region.key_bands_at or region.key_at
    remaps = rotation.axes is None or region.bands > 0
    of_query = partial(_cos_sin, scheme, rotation, query_at if remaps else None, region.query_decay_steps, ctx)
    of_key = partial(_cos_sin, scheme, rotation, key_at if remaps else None, region.key_decay_steps, ctx)
    one_table = not region.remaps and not rotation.decay
    if rotation.learned:  # it has a gradient, which no other layer may share
        query = of_query(ctx.query_positions)
        return query, query if one_table else of_key(ctx.query_positions)

    def cached(place: PositionMap, make: Callable[[Tensor], Table]) -> Table:
        if ctx.first is None or not remaps or rotation.decay or is_traced():
            return make(ctx.query_positions)
        return scheme.tables.rows(
            (value_of(place), rotation), ctx.first, ctx.query_positions.shape[1], ctx.device, make
        )

    # Layers may have schemes that rotate alike and remap differently: a table belongs to one scheme object.
    query = ctx.once((id(scheme.original), number, "query"), lambda: cached(query_at, of_query))
    if one_table:
        return query, query
    return query, ctx.once((id(scheme.original), number, "key"), lambda: cached(key_at, of_key))


def _cos_sin(
    scheme: Scheme,
    rotation: Rotation,
    remap: PositionMap | None,
    decay_steps: PositionMap,
    ctx: PositionContext,
    positions: Tensor,
) -> Table:
    if remap is not None:
        places: Tensor = remap(positions)
    elif ctx.coordinates is not None and not implements(scheme, "coordinates"):
        places = ctx.coordinates
    else:
        places = scheme.coordinates(positions, ctx.coordinates)
    return table(rotation, places, decay_steps(positions))


def rotation_of(scheme: Scheme, ctx: PositionContext) -> Rotation | None:
    """A scheme's rotation, worked out once a forward pass where it is not learned.

    Where the call gives several coordinates and the scheme knows one, pairs follow them as in the unpatched model.

    Raises:
        OptionOutOfRange: learned frequencies are no tensor ``[pairs]``.
    """
    key = (id(scheme.original), "rotation")
    if key in ctx.memo:
        return ctx.memo[key]  # type: ignore[return-value]
    rotation, own = scheme.rotation(), scheme.geometry.rotary
    if ctx.coordinates is not None and rotation is not None and own is not None and own.rotates_by_axes(rotation):
        rotation = replace(rotation, axes=own.axes)
    if rotation is None or not rotation.learned:
        ctx.memo[key] = rotation
    elif isinstance(rotation.frequencies, Tensor) and rotation.frequencies.ndim != 1:
        raise OptionOutOfRange(
            f"The frequencies of scheme {scheme.shown_name!r} have the shape {list(rotation.frequencies.shape)}. "
            "Return one for each pair from rotation; heads differ by Region.by_head."
        )
    return rotation


def key_copies(regions: tuple[Region, ...]) -> tuple[int, ...]:
    """Which copy of the keys each region reads, as a number from 0 on."""
    if len(regions) == 1:
        return (0,)
    numbers: dict[object, int] = {}
    return tuple([numbers.setdefault(region.copy, len(numbers)) for region in regions])


def copies_of(copies: tuple[Tensor, ...], regions: tuple[Region, ...]) -> tuple[Tensor, ...]:
    """The keys as each region reads them; all regions share one copy where nothing is rotated."""
    return tuple(copies[number % len(copies)] for number in key_copies(regions))


def query_factor(terms: Terms) -> tuple[Tensor | None, Terms]:
    """What queries are multiplied by, ``[batch or 1, heads or 1, query, 1]`` or None; and the terms that are left.

    A factor of whole logits is one of the query where nothing is added to its scores.
    """
    factor = None if terms.query_scale is None else terms.query_scale[:, None]
    if terms.row_scale is not None and len(terms.bias) == 0:
        factor = terms.row_scale if factor is None else factor * terms.row_scale
        terms = replace(terms, row_scale=None)
    return None if factor is None else factor[..., None], terms


def scale(queries: tuple[Tensor, ...], factor: Tensor | None) -> tuple[Tensor, ...]:
    """Queries of every region times a factor; as they are where there is none."""
    return queries if factor is None else tuple((query * factor).to(query.dtype) for query in queries)


def scaled(queries: tuple[Tensor, ...], terms: Terms) -> tuple[tuple[Tensor, ...], Terms]:
    """Scale the queries of one call: `scale` by `query_factor`."""
    factor, terms = query_factor(terms)
    return scale(queries, factor), terms
