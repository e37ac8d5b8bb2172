"""Queries and keys in turn: each region of a scheme has its own, and regions that agree share the cached key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Place, Region
from hf_posenc.core.rotation.apply import Table, rotate, table
from hf_posenc.core.terms import Terms
from hf_posenc.core.tracing import is_traced
from hf_posenc.schemes.base import Scheme


def rotated(
    scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, ctx: PositionContext, of_keys: PositionContext | None = None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Queries, one a region; the different copies of the keys; and the values.

    Args:
        scheme: what rotates them.
        q: ``[batch, heads, query, head_dim]``.
        k: ``[batch, kv_heads, key, head_dim]``; ``v`` likewise.
        ctx: where the queries stand, and the keys with them.
        of_keys: where the keys stand, as its ``query_positions``, if not where the queries do.
    """
    shared, regions = rotation_of(scheme, ctx), scheme.regions(ctx)
    queries: list[Tensor] = []
    copies: dict[object, Tensor] = {}
    for number, region in enumerate(regions):
        rotation = region.rotation or shared
        if rotation is None:  # only a bias knows where the tokens stand
            queries.append(q)
            copies[None] = k
            continue
        as_query, as_key = tables_of(scheme, number, region, rotation, ctx)
        if of_keys is not None:
            _, as_key = tables_of(scheme, number, region, rotation, of_keys)
        queries.append(rotate(q, rotation, as_query))
        if region.copy not in copies:
            copies[region.copy] = rotate(k, rotation, as_key)
        if rotation.values and number == 0:
            v = rotate(v, rotation, as_key)
    return tuple(queries), tuple(copies.values()), v


def tables_of(
    scheme: Scheme, number: int, region: Region, rotation: Rotation, ctx: PositionContext
) -> tuple[Table, Table]:
    """Cosines and sines of queries and keys in one region of a scheme."""
    as_query = partial(_turn, scheme, rotation, region.query_at, region.query_age, ctx)
    as_key = partial(_turn, scheme, rotation, region.key_at, region.key_age, ctx)
    one_table = not region.remaps and not rotation.decay
    if rotation.learned:  # it has a gradient, which no other layer may share
        turn = as_query(ctx.query_positions)
        return turn, turn if one_table else as_key(ctx.query_positions)

    def kept(use: str, make: Callable[[Tensor], Table]) -> Table:
        if ctx.first is None or rotation.axes or rotation.decay or is_traced():
            return make(ctx.query_positions)
        return scheme.tables.rows(
            (number, use, rotation), ctx.first, ctx.query_positions.shape[1], ctx.device, make
        )  # fmt: skip

    # Layers may have schemes that rotate alike and remap differently: a table belongs to one scheme object.
    turn = ctx.once((id(scheme.original), number, "query"), lambda: kept("query", as_query))
    return turn, turn if one_table else ctx.once((id(scheme.original), number, "key"), lambda: kept("key", as_key))


def _turn(
    scheme: Scheme, rotation: Rotation, place: Place, age: Place, ctx: PositionContext, positions: Tensor
) -> Table:
    places = scheme.coordinates(positions, ctx.coordinates) if rotation.axes else place(positions)
    return table(rotation, places, age(positions))


def rotation_of(scheme: Scheme, ctx: PositionContext) -> Rotation | None:
    """A scheme's rotation, worked out once a forward pass where it is not learned."""
    key = (id(scheme.original), "rotation")
    if key in ctx.memo:
        return ctx.memo[key]  # type: ignore[return-value]
    rotation = scheme.rotation()
    if rotation is None or not rotation.learned:
        ctx.memo[key] = rotation
    return rotation


def copies_of(copies: tuple[Tensor, ...], regions: tuple[Region, ...]) -> tuple[Tensor, ...]:
    """The keys as each region reads them; regions may share a copy, and all do where nothing is rotated."""
    numbers: dict[object, int] = {}
    for region in regions:
        numbers.setdefault(region.copy, len(numbers))
    return tuple(copies[numbers[region.copy] % len(copies)] for region in regions)


def scaled(queries: tuple[Tensor, ...], terms: Terms) -> tuple[tuple[Tensor, ...], Terms]:
    """Queries with the factors of their rows; a factor of whole logits is one of theirs where nothing is added."""
    factor = None if terms.query_scale is None else terms.query_scale[:, None]
    if terms.row_scale is not None and len(terms.bias) == 0:
        factor = terms.row_scale if factor is None else factor * terms.row_scale
        terms = replace(terms, row_scale=None)
    if factor is None:
        return queries, terms
    return tuple((x * factor[..., None]).to(x.dtype) for x in queries), terms
