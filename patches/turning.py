"""Queries and keys in turn: each region of a scheme has its own, and regions that agree share the cached key."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.bands import Region
from hf_posenc.geometry import Rotation
from hf_posenc.positions import PositionContext
from hf_posenc.rotate import Table, rotate, table
from hf_posenc.schemes.base import Scheme
from hf_posenc.terms import Terms


def turned(
    scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, ctx: PositionContext
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Queries, one a region; the key to cache, its different copies side by side in the channels; and the values."""
    shared, regions = scheme.rotation(), scheme.regions(ctx)
    queries: list[Tensor] = []
    copies: dict[object, Tensor] = {}
    for number, region in enumerate(regions):
        rotation = region.rotation or shared
        if rotation is None:  # only a bias knows where the tokens stand
            queries.append(q)
            copies[None] = k
            continue
        as_query, as_key = tables_of(scheme, number, region, rotation, ctx)
        queries.append(rotate(q, rotation, as_query))
        if region.copy not in copies:
            copies[region.copy] = rotate(k, rotation, as_key)
        if rotation.values and number == 0:
            v = rotate(v, rotation, as_key)
    keys = list(copies.values())
    return tuple(queries), keys[0] if len(keys) == 1 else torch.cat(keys, dim=-1), v


def tables_of(
    scheme: Scheme, number: int, region: Region, rotation: Rotation, ctx: PositionContext
) -> tuple[Table, Table]:
    """Cosines and sines of queries and keys in one region of a scheme."""
    here = ctx.query_positions

    def as_query() -> Table:
        places = scheme.coordinates(here, ctx.coordinates) if rotation.axes else region.query_at(here)
        return table(rotation, places, region.query_age(here))

    def as_key() -> Table:
        places = scheme.coordinates(here, ctx.coordinates) if rotation.axes else region.key_at(here)
        return table(rotation, places, region.key_age(here))

    one_table = not region.remaps and not rotation.decay
    if rotation.learned:  # it has a gradient, which no other layer may share
        turn = as_query()
        return turn, turn if one_table else as_key()
    # Layers may have schemes that rotate alike and remap differently: a table belongs to one scheme object.
    turn = ctx.once((id(scheme), number, "query"), as_query)
    return turn, turn if one_table else ctx.once((id(scheme), number, "key"), as_key)


def copies_of(key: Tensor, regions: tuple[Region, ...], head_dim: int) -> tuple[Tensor, ...]:
    """The cached key as each region reads it; regions may share a copy, and all do where nothing is rotated."""
    numbers: dict[object, int] = {}
    for region in regions:
        numbers.setdefault(region.copy, len(numbers))
    copies = key.split(head_dim, dim=-1)
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
