"""Do without a mask: where it hides padding, and what is outside a window, attend to the unpadded tokens of each
sequence in a separate call, and to the keys of the window alone.

Lengths and window are inferred from the mask once per forward pass, and compared with every entry of it. Where the mask
hides more (packed sequences, gaps, a bidirectional prefix), the call is left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posenc.attention.call import AttentionCall, unseen_ahead
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import BlockBias, KeyBias
from hf_posenc.core.tracing import is_traced

ROWS = 1024  # of a mask are compared at once


@dataclass(frozen=True)
class UnpaddedRun:
    """Unpadded tokens of one sample: their queries in the call, their keys, and the window that the mask leaves."""

    rows: slice
    keys: slice
    window: Band = EVERYTHING


def attend_runs(found: list[UnpaddedRun], call: AttentionCall, compute: Callable[[AttentionCall], Tensor]) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``, zeros at padding.

    Args:
        found: the unpadded tokens of each sample, from `runs`.
        call: of all samples.
        compute: mixes a call without padding.
    """
    whole = UnpaddedRun(slice(0, call.query_length), slice(0, found[0].keys.stop), found[0].window)
    if all(run == whole for run in found):
        return compute(sample(call, slice(None), whole))
    samples = []
    for b, run in enumerate(found):
        mixed = compute(sample(call, slice(b, b + 1), run))
        samples.append(pad(mixed, (0, 0, run.rows.start, call.query_length - run.rows.stop)))
    return torch.cat(samples)


def runs(call: AttentionCall) -> list[UnpaddedRun] | None:
    """The unpadded tokens of each sample, if nothing but padding and a window hides keys."""
    mask = call.mask
    if mask is None or mask.shape[1] != 1 or call.dropout or call.query_length == 1 or is_traced():
        return None
    # The mask is kept with the result, so that its id cannot be reused.
    key = ("padding", id(mask), call.query_length, call.key_length)
    return call.ctx.once(key, lambda: (mask, _runs_of_mask(call, mask)))[1]


def hide_nothing(found: list[UnpaddedRun], call: AttentionCall) -> bool:
    """Whether the mask says no more than causality does, as transformers' own does of a text read into a cache."""
    everyone = UnpaddedRun(slice(0, call.query_length), slice(0, call.key_length))
    return call.ctx.contiguous and call.start is None and all(run == everyone for run in found)


def can_split(call: AttentionCall) -> bool:
    """Whether samples can be computed one by one: no term is of the whole batch, or of all keys."""
    terms = call.terms
    of_pairs = any(isinstance(bias, BlockBias) for bias in terms.bias)
    return not (terms.values or terms.row_rotation is not None or of_pairs)


def _runs_of_mask(call: AttentionCall, mask: Tensor) -> list[UnpaddedRun] | None:
    if mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min
        if not bool(((mask == 0) | (mask <= lowest)).all()):
            return None
        mask = mask > lowest
    mask = mask[..., : call.key_length].expand(len(call.values), -1, -1, -1)[:, 0]
    found = []
    for b, seen in enumerate(mask):
        run = _run(call, b, seen)
        if run is None or (run.window != EVERYTHING and call.terms.visible.chunk != 1):
            return None
        found.append(run)
    return found


def _run(call: AttentionCall, b: int, seen: Tensor) -> UnpaddedRun | None:
    """The unpadded tokens of one sample with the visible pairs ``seen [query or 1, key]``."""
    queries, keys, real = call.query_length, call.key_length, call.ctx.real_keys
    if real is None:
        last = seen[-1].nonzero()[:, 0]
        if len(last) == 0:
            return None
        first, end = 0, int(last[-1]) + 1
        ahead = end - queries  # keys after the last query are unwritten slots of a static cache
        if ahead < 0 or (end < keys and not call.ctx.causal):
            return None
    else:
        ahead = keys - queries
        known = pad(real[b], (0, keys - real.shape[1])).nonzero()[:, 0]
        if len(known) == 0:
            return None
        first, end = int(known[0]), int(known[-1]) + 1
        if len(known) != end - first:
            return None
    rows = slice(max(0, first - ahead), end - ahead)
    if rows.start >= rows.stop or not _in_order(call, b, slice(first, end), slice(rows.start + ahead, end), rows):
        return None
    own = slice(rows.start + ahead, end)  # their keys
    seen = seen.expand(queries, -1)[rows]
    window = _window(seen, own, slice(first, end), call.ctx.causal)
    if window is None:
        return None
    indices = torch.arange(keys, device=seen.device)
    inside = (indices >= first) & (indices < end)
    meant_by = unseen_ahead(window, call.ctx.causal)
    for start in range(0, len(seen), ROWS):
        here = indices[own][start : start + ROWS, None]
        if not torch.equal(seen[start : start + ROWS], inside & meant_by.holds(here, indices)):
            return None
    return UnpaddedRun(rows, slice(first, end), window)


def _window(seen: Tensor, own: slice, keys: slice, causal: bool) -> Band | None:
    """The window that the first and the last of some queries see; None where they see nothing, or not themselves.

    Args:
        seen: visible pairs, ``[query, key]``.
        own: indices of the queries among the keys.
        keys: the unpadded ones.
        causal: whether what is ahead is hidden in any case.
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
    there = call.ctx.key_positions.expand(len(call.values), -1)[b]
    here = call.ctx.query_positions.expand(len(call.values), -1)[b, rows]
    if there.is_floating_point() or len(there) < keys.stop:
        return False
    return torch.equal(here, there[indices]) and bool((there[keys].diff() == 1).all())


def sample(call: AttentionCall, samples: slice, run: UnpaddedRun) -> AttentionCall:
    """The unpadded tokens of some samples that have them at the same indices, as a call without a mask."""
    one = call.of_samples(samples)
    terms, ctx = one.terms, one.ctx
    biases = [replace(b, values=b.values[..., run.keys]) if isinstance(b, KeyBias) else b for b in terms.bias]
    scale = None if terms.row_scale is None else terms.row_scale[..., run.rows]
    here = _one_row(ctx.query_positions[:, run.rows])
    return replace(
        one,
        queries=tuple(q[:, :, run.rows] for q in one.queries),
        keys=tuple(k[:, :, run.keys] for k in one.keys),
        values=one.values[:, :, run.keys],
        terms=replace(terms, bias=tuple(biases), row_scale=scale, visible=terms.visible & run.window),
        ctx=replace(
            ctx,
            query_positions=here,
            key_positions=_one_row(ctx.key_positions[:, run.keys]),
            contiguous=True,
            real_keys=None,
            memo=ctx.once(("sample", samples.start, run.keys.start, run.keys.stop, run.window), dict),
            first=int(here[0, 0]) if len(here) == 1 else None,
        ),
        mask=None,
    )


def _one_row(positions: Tensor) -> Tensor:
    """Positions ``[batch or 1, token]``, as one row where all samples have the same."""
    return positions[:1] if torch.equal(positions, positions[:1].expand_as(positions)) else positions
