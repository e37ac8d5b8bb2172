"""Remove padding: where a mask hides padding only, attend to the unpadded tokens of each sequence in a separate call.

The lengths are inferred from the mask once per forward pass, and compared with every entry of it. Where the mask hides
more than padding (packed sequences, gaps, a bidirectional prefix), the call is left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.terms import BlockBias, KeyBias
from hf_posenc.core.tracing import is_traced

ROWS = 1024  # of a mask are compared at once


@dataclass(frozen=True)
class Run:
    """Unpadded tokens of one sample: their queries in the call, and their keys."""

    rows: slice
    keys: slice


def attend_runs(found: list[Run], call: AttentionCall, compute: Callable[[AttentionCall], Tensor]) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``, zeros at padding.

    Args:
        found: the unpadded tokens of each sample, from `runs`.
        call: of all samples.
        compute: mixes a call without padding.
    """
    whole = Run(slice(0, call.query_length), slice(0, found[0].keys.stop))
    if all(run == whole for run in found):
        return compute(sample(call, slice(None), whole))
    samples = []
    for b, run in enumerate(found):
        mixed = compute(sample(call, slice(b, b + 1), run))
        samples.append(pad(mixed, (0, 0, run.rows.start, call.query_length - run.rows.stop)))
    return torch.cat(samples)


def runs(call: AttentionCall) -> list[Run] | None:
    """The unpadded tokens of each sample, if the mask hides padding only and the call can be split; else None."""
    mask, terms = call.mask, call.terms
    if mask is None or mask.shape[1] != 1 or call.dropout or call.query_length == 1 or is_traced():
        return None
    if terms.values or terms.rows is not None or any(isinstance(bias, BlockBias) for bias in terms.bias):
        return None
    # The mask is kept with the result, so that its id cannot be reused.
    key = ("padding", id(mask), call.query_length, call.key_length)
    return call.ctx.once(key, lambda: (mask, _runs_of_mask(call, mask)))[1]


def _runs_of_mask(call: AttentionCall, mask: Tensor) -> list[Run] | None:
    if mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min
        if not bool(((mask == 0) | (mask <= lowest)).all()):
            return None
        mask = mask > lowest
    mask = mask[..., : call.key_length].expand(len(call.values), -1, -1, -1)[:, 0]
    found = []
    for b, seen in enumerate(mask):
        run = _run(call, b, seen)
        if run is None:
            return None
        found.append(run)
    return found


def _run(call: AttentionCall, b: int, seen: Tensor) -> Run | None:
    """The unpadded tokens of one sample with the visible pairs ``seen [query or 1, key]``."""
    queries, keys, real = call.query_length, call.key_length, call.ctx.real_keys
    last = seen[-1].nonzero()[:, 0]
    if len(last) == 0:
        return None
    first, end = int(last[0]), int(last[-1]) + 1
    if real is None:
        ahead = end - queries  # keys after the last query are unwritten slots of a static cache
        if first != 0 or ahead < 0 or (end < keys and not call.ctx.causal):
            return None
    else:
        ahead = keys - queries
        known = pad(real[b], (0, keys - real.shape[1]))
        if int(known.sum()) != end - first or not bool(known[first:end].all()):
            return None
    rows = slice(max(0, first - ahead), end - ahead)
    if rows.start >= rows.stop or not _in_order(call, b, slice(first, end), slice(rows.start + ahead, end), rows):
        return None
    indices = torch.arange(keys, device=seen.device)
    inside = (indices >= first) & (indices < end)
    for start in range(rows.start, rows.stop, ROWS):
        some = slice(start, min(start + ROWS, rows.stop))
        meant = inside[None]
        if call.ctx.causal:
            meant = meant & (indices <= indices[some.start + ahead : some.stop + ahead, None])
        if not torch.equal(seen.expand(queries, -1)[some], meant.expand(some.stop - some.start, -1)):
            return None
    return Run(rows, slice(first, end))


def _in_order(call: AttentionCall, b: int, keys: slice, indices: slice, rows: slice) -> bool:
    """Whether a sample's key positions are consecutive, and its queries have the same positions."""
    there = call.ctx.key_positions.expand(len(call.values), -1)[b]
    here = call.ctx.query_positions.expand(len(call.values), -1)[b, rows]
    if there.is_floating_point() or len(there) < keys.stop:
        return False
    return torch.equal(here, there[indices]) and bool((there[keys].diff() == 1).all())


def sample(call: AttentionCall, samples: slice, run: Run) -> AttentionCall:
    """The unpadded tokens of some samples that have them at the same indices, as a call without a mask."""

    def of_batch(x: Tensor) -> Tensor:
        return x[samples] if len(x) > 1 else x

    def of_bias(bias: object) -> object:
        return replace(bias, values=of_batch(bias.values)[..., run.keys]) if isinstance(bias, KeyBias) else bias

    terms, ctx = call.terms, call.ctx
    scale = None if terms.row_scale is None else of_batch(terms.row_scale)[..., run.rows]
    here = _one_row(of_batch(ctx.query_positions)[:, run.rows])
    return replace(
        call,
        queries=tuple(q[samples, :, run.rows] for q in call.queries),
        keys=tuple(k[samples, :, run.keys] for k in call.keys),
        values=call.values[samples, :, run.keys],
        terms=replace(terms, bias=tuple(map(of_bias, terms.bias)), row_scale=scale),  # type: ignore[arg-type]
        ctx=replace(
            ctx,
            query_positions=here,
            key_positions=_one_row(of_batch(ctx.key_positions)[:, run.keys]),
            contiguous=True,
            real_keys=None,
            memo=ctx.once(("sample", samples.start, run.keys.start, run.keys.stop), dict),
            first=int(here[0, 0]) if len(here) == 1 else None,
        ),
        mask=None,
        rotated_keys=None,
    )


def _one_row(positions: Tensor) -> Tensor:
    """Positions ``[batch or 1, token]``, as one row where all samples have the same."""
    return positions[:1] if torch.equal(positions, positions[:1].expand_as(positions)) else positions
