"""Rotate cached keys when they are read: a KV cache holds one copy of each key, and the copies of other regions follow.

    R(p') k = R(p' − p) R(p) k        p, p': positions of a key in the region whose copy is cached, and in another one

Cached is the copy of the region that sees the most keys; of the others a decoded token sees a few hundred keys at most,
and only these are rotated. Cosines and sines of p' − p are worked out once for all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Region
from hf_posenc.core.rotation.apply import Table, rotate, rotate_at_once, table
from hf_posenc.core.rotation.cache import AHEAD
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.rotate_qk import rotation_of
from hf_posenc.schemes.base import Scheme

AT_ONCE = 4096  # keys that are rotated in one operation: few enough for the cache of a CPU core


@dataclass(frozen=True)
class ReadRotation:
    """Rotation of cached keys to those of another region.

    Attributes:
        rotation: of their channels.
        cos_sin: columns of the cache to cosines and sines of the difference of the two positions.
    """

    rotation: Rotation
    cos_sin: Callable[[slice], Table]

    def __call__(self, keys: Tensor, columns: slice) -> Tensor:
        """Rotate the cached keys of some columns, ``[batch, kv_heads, columns, head_dim]``."""
        cos_sin, rotation = self.cos_sin(columns), self.rotation
        if torch.is_grad_enabled() or is_traced() or keys.shape[2] > AT_ONCE:
            return rotate(keys, rotation, cos_sin)
        if rotation.layout == "half" and rotation.dims == keys.shape[-1] and keys.dtype == cos_sin[0].dtype:
            return rotate_halves(keys, cos_sin)
        return rotate_at_once(keys, rotation.layout, cos_sin)


def rotate_halves(keys: Tensor, cos_sin: Table) -> Tensor:
    """`rotate_at_once` of whole heads in layout ``half``, with one tensor less: partners are overwritten by the result.

    A decoded token waits for memory, not for arithmetic. Without gradient, and in the dtype of the tables.
    """
    own, partner = cos_sin
    half = keys.shape[-1] // 2
    partners = torch.cat((keys[..., half:], keys[..., :half]), dim=-1)
    return partners.mul_(partner).addcmul_(keys, own)


@dataclass(frozen=True)
class KeysAtRead:
    """What is cached of the keys of one forward pass, and how each region reads it.

    Attributes:
        stored: number of the region whose copy is cached.
        rotations: one a region; None where it reads keys as they are cached.
    """

    stored: int
    rotations: tuple[ReadRotation | None, ...]


def keys_at_read(scheme: Scheme, ctx: PositionContext) -> KeysAtRead:
    """How the regions of a scheme that caches one copy of each key read it.

    Args:
        scheme: whose ``caches_one_key`` is true.
        ctx: positions of the queries and of all keys.
    """
    regions, rotation = scheme.regions(ctx), rotation_of(scheme, ctx)
    assert rotation is not None  # else there would be one copy in any case, and the option is refused
    stored, alone = stored_region(regions), scheme.keep("rotation at read", lambda: replace(rotation, amplitude=1.0))
    of_stored = regions[stored]
    return KeysAtRead(
        stored,
        tuple(
            None
            if region.copy == of_stored.copy
            else ReadRotation(alone, differences(scheme, ctx, alone, number, of_stored, region))
            for number, region in enumerate(regions)
        ),
    )


def stored_region(regions: tuple[Region, ...]) -> int:
    """Number of the region that sees the most keys."""
    most = []
    for band in (region.band for region in regions):
        reach = inf if band.farthest is None else band.farthest * band.chunk
        most.append(reach if band.keys_until is None else min(reach, band.keys_until))
    return most.index(max(most))


def differences(
    scheme: Scheme, ctx: PositionContext, rotation: Rotation, number: int, stored: Region, region: Region
) -> Callable[[slice], Table]:
    """Cosines and sines of the difference of a key's positions in two regions, by columns of the cache."""

    def of_positions(positions: Tensor) -> Table:
        return table(rotation, region.key_at(positions) - stored.key_at(positions))

    def of_columns(columns: slice) -> Table:
        return of_positions(ctx.key_positions[:, columns])

    if is_traced():
        return of_columns
    first, use = ctx.first_key, (number, "at read", rotation)
    return once(of_columns if first is None else partial(_kept, scheme, ctx, use, first, of_positions))


def once(make: Callable[[slice], Table]) -> Callable[[slice], Table]:
    """The same function, which makes the tables of equal columns once: the layers that share it read the same keys."""
    made: dict[tuple[int, int], Table] = {}

    def known(columns: slice) -> Table:
        ends = columns.start, columns.stop
        if ends not in made:
            made[ends] = make(columns)
        return made[ends]

    return known


def _kept(
    scheme: Scheme,
    ctx: PositionContext,
    use: tuple[object, ...],
    first: int,
    make: Callable[[Tensor], Table],
    columns: slice,
) -> Table:
    """From the tables that a scheme keeps between forward passes."""
    count, ahead = columns.stop - columns.start, AHEAD if ctx.query_positions.shape[1] == 1 else 0
    return scheme.tables.rows(use, first + columns.start, count, ctx.device, make, ahead)
