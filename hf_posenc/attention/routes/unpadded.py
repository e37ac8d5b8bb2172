"""Replace a mask that hides padding, or keys outside a window, by calls without a mask.

Each call has the unpadded tokens of one sequence, and the window as a term. Lengths and window are inferred from the
mask once per forward pass, and compared with every entry of it. If the mask hides other pairs (packed sequences, gaps,
a bidirectional prefix), the call is left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posenc.attention.call import AttentionCall, causal_band
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import BlockBias, KeyBias
from hf_posenc.core.tracing import is_traced

ROWS = 1024  # rows of a mask that are compared at a time


@dataclass(frozen=True)
class UnpaddedRun:
    """Unpadded tokens of one sample: slices of their queries and keys, and the window that the mask describes."""

    rows: slice
    keys: slice
    window: Band = EVERYTHING


def attend_runs(parsed: list[UnpaddedRun], call: AttentionCall, compute: Callable[[AttentionCall], Tensor]) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``, zeros at padding.

    Args:
        parsed: the unpadded tokens of each sample, from `runs`.
        call: the call with all samples.
        compute: computes the output of a call without padding.
    """
    common = UnpaddedRun(slice(0, call.query_length), slice(0, parsed[0].keys.stop), parsed[0].window)
    if all(run == common for run in parsed):
        return compute(unpadded_call(call, slice(None), common))
    samples = []
    for b, run in enumerate(parsed):
        out = compute(unpadded_call(call, slice(b, b + 1), run))
        samples.append(pad(out, (0, 0, run.rows.start, call.query_length - run.rows.stop)))
    return torch.cat(samples)


def runs(call: AttentionCall) -> list[UnpaddedRun] | None:
    """The unpadded tokens of each sample; None if the mask hides more than padding and a window."""
    mask = call.mask
    if mask is None or mask.shape[1] != 1 or call.dropout or call.query_length == 1 or is_traced():
        return None
    # The mask is kept with the result, so that its id cannot be reused.
    key = ("padding", id(mask), call.query_length, call.key_length)
    return call.ctx.once(key, lambda: (mask, _runs_of_mask(call, mask)))[1]


def hide_nothing(parsed: list[UnpaddedRun], call: AttentionCall) -> bool:
    """Whether the mask hides only what causality hides, like transformers' mask for a text read into a cache."""
    everything = UnpaddedRun(slice(0, call.query_length), slice(0, call.key_length))
    return call.ctx.contiguous and call.start is None and all(run == everything for run in parsed)


def can_split(call: AttentionCall) -> bool:
    """Whether samples can be computed one by one: no term belongs to the whole batch, or to all keys."""
    terms = call.terms
    has_block_bias = any(isinstance(bias, BlockBias) for bias in terms.bias)
    return not (terms.values or terms.row_rotation is not None or has_block_bias)


def _runs_of_mask(call: AttentionCall, mask: Tensor) -> list[UnpaddedRun] | None:
    if mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min
        if not bool(((mask == 0) | (mask <= lowest)).all()):
            return None
        mask = mask > lowest
    mask = mask[..., : call.key_length].expand(len(call.values), -1, -1, -1)[:, 0]
    parsed = []
    for b, seen in enumerate(mask):
        run = _run(call, b, seen)
        if run is None or (run.window != EVERYTHING and call.terms.visible.chunk != 1):
            return None
        parsed.append(run)
    return parsed


def _run(call: AttentionCall, b: int, seen: Tensor) -> UnpaddedRun | None:
    """The unpadded tokens of sample ``b``, whose visible pairs are ``seen [query or 1, key]``; None as in `runs`."""
    queries, keys, real = call.query_length, call.key_length, _real_keys(call, b, seen)
    ahead = keys - queries
    if call.ctx.real_keys is None:
        ahead = real.stop - queries  # keys after the last query are unwritten slots of a static cache
        if ahead < 0 or (real.stop < keys and not call.ctx.causal):
            return None
    rows = slice(max(0, real.start - ahead), real.stop - ahead)
    own = slice(rows.start + ahead, real.stop)  # the keys at the positions of the queries
    if rows.start >= rows.stop or not _in_order(call, b, real, own, rows):
        return None
    seen = seen.expand(queries, -1)[rows]
    window = _window(seen, own, real, call.ctx.causal)
    if window is None:
        return None
    indices = torch.arange(keys, device=seen.device)
    inside = (indices >= real.start) & (indices < real.stop)
    band = causal_band(window, call.ctx.causal)
    for start in range(0, len(seen), ROWS):
        queries_here = indices[own][start : start + ROWS, None]
        if not torch.equal(seen[start : start + ROWS], inside & band.holds(queries_here, indices)):
            return None
    return UnpaddedRun(rows, real, window)


def _real_keys(call: AttentionCall, b: int, seen: Tensor) -> slice:
    """The unpadded keys of sample ``b``; empty if it has none, or padding between them."""
    real = call.ctx.real_keys
    if real is None:
        columns = seen[-1].nonzero()[:, 0]
        return slice(0, int(columns[-1]) + 1 if len(columns) > 0 else 0)
    columns = pad(real[b], (0, call.key_length - real.shape[1])).nonzero()[:, 0]
    if len(columns) == 0:
        return slice(0, 0)
    first, end = int(columns[0]), int(columns[-1]) + 1
    return slice(first, end) if end - first == len(columns) else slice(0, 0)


def _window(seen: Tensor, own: slice, keys: slice, causal: bool) -> Band | None:
    """The window, inferred from the first and the last query; None if one of them sees no key, or not its own.

    Args:
        seen: visible pairs, ``[query, key]``.
        own: indices of the queries among the keys.
        keys: slice of the unpadded keys.
        causal: whether later keys are hidden in any case.
    """
    nearest = farthest = None
    last, first = seen[-1].nonzero()[:, 0], seen[0].nonzero()[:, 0]
    if len(last) == 0 or len(first) == 0:
        return None
    if int(last[0]) > keys.start:
        farthest = own.stop - int(last[0])
    if not causal and int(first[-1]) < keys.stop - 1:
        nearest = own.start - int(first[-1])
    window = Band(nearest, farthest)
    return window if (nearest or 0) <= 0 and (farthest is None or farthest > 0) else None


def _in_order(call: AttentionCall, b: int, keys: slice, indices: slice, rows: slice) -> bool:
    """Whether a sample's key positions are consecutive, and its queries have the same positions."""
    key_positions = call.ctx.key_positions.expand(len(call.values), -1)[b]
    query_positions = call.ctx.query_positions.expand(len(call.values), -1)[b, rows]
    if key_positions.is_floating_point() or len(key_positions) < keys.stop:
        return False
    return torch.equal(query_positions, key_positions[indices]) and bool((key_positions[keys].diff() == 1).all())


def unpadded_call(call: AttentionCall, samples: slice, run: UnpaddedRun) -> AttentionCall:
    """A call without a mask, with the unpadded tokens of some samples; they are at the same indices in all of them."""
    picked = call.of_samples(samples)
    terms, ctx = picked.terms, picked.ctx
    biases = [
        replace(bias, values=bias.values[..., run.keys]) if isinstance(bias, KeyBias) else bias for bias in terms.bias
    ]
    row_scale = None if terms.row_scale is None else terms.row_scale[..., run.rows]
    query_positions = _one_row(ctx.query_positions[:, run.rows])
    return replace(
        picked,
        queries=tuple(q[:, :, run.rows] for q in picked.queries),
        keys=tuple(k[:, :, run.keys] for k in picked.keys),
        values=picked.values[:, :, run.keys],
        terms=replace(terms, bias=tuple(biases), row_scale=row_scale, visible=terms.visible & run.window),
        ctx=replace(
            ctx,
            query_positions=query_positions,
            key_positions=_one_row(ctx.key_positions[:, run.keys]),
            contiguous=True,
            real_keys=None,
            memo=ctx.once(("sample", samples.start, run.keys.start, run.keys.stop, run.window), dict),
            first=int(query_positions[0, 0]) if len(query_positions) == 1 else None,
        ),
        mask=None,
    )


def _one_row(positions: Tensor) -> Tensor:
    """Positions ``[batch or 1, token]``, as a single row if all samples have the same."""
    return positions[:1] if torch.equal(positions, positions[:1].expand_as(positions)) else positions
