"""Checks of the cache: where a text was cut into cached pieces must not show in its logits."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    chunk_sizes,
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.registry import register_check

AROUND = tuple(near for power in (64, 128, 256, 512) for near in (power - 4, power + 4))
LONG = AROUND[-1] + 4


@register_check("cache", causal=True, continues=True)
def cached_equals_uncached(
    pair: Case, cache: type[Cache] = DynamicCache, cut: int | None = None, step: int | None = None
) -> Deviation:
    """A text read at once equals the same text read in pieces.

    Args:
        pair: scheme and decoder.
        cache: class of the cache.
        cut: tokens of the first piece; one more than the trained length by default.
        step: tokens of the others; 1 decodes, and the default is to decode four and read the rest in sevens.
    """
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 12, model)
        first = min(pair.trained + 1 if cut is None else cut, length - 1)
        tokens = random_tokens(model, length)
        sizes = chunk_sizes(first, step, length) if step else _some_then_chunks(first, length)
        read_in_pieces = forward_in_chunks(model, tokens, new_cache(cache, model, length), sizes)
        value, where = max_deviation(read_in_pieces, forward(model, tokens))
    return pair.gap("cache", value, f"{where}, {cache.__name__}, first piece of {first}")


@register_check("long", causal=True, continues=True, costly=True)
def hundreds_of_tokens_are_no_threshold(pair: Case) -> Deviation:
    """A text of some hundred tokens reads in pieces that end around the powers of two up to 512 as it does at once.

    What a scheme does otherwise from some number of keys on, which trained lengths of these checks do not reach, shows.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(LONG, model))
        sizes = [size for size in AROUND if size <= tokens.shape[1]]
        ends = [0, *sizes, tokens.shape[1]]
        parts = [end - start for start, end in pairwise(ends) if end > start]
        read_in_pieces = forward_in_chunks(model, tokens, new_cache(DynamicCache, model, tokens.shape[1]), parts)
        value, where = max_deviation(read_in_pieces, forward(model, tokens))
    return pair.gap("long", value, where)


@register_check("beams", causal=True, continues=True)
def cache_can_be_reordered(pair: Case, cache: type[Cache] = DynamicCache) -> Deviation:
    """After its rows change places, as beam search makes them, a cache goes on as if they had always been there."""
    with pair.patched() as model:
        length = pair.length(pair.trained + 9, model)
        tokens = random_tokens(model, length, rows=3)
        order = torch.tensor([2, 0, 0], device=tokens.device)
        half = length - 5
        kept = new_cache(cache, model, length)
        forward_in_chunks(model, tokens[:, :half], kept, [half])
        kept.reorder_cache(order)
        now = torch.cat((tokens[order, :half], tokens[:, half:]), dim=1)
        after = torch.cat([forward(model, now[:, t : t + 1], past_key_values=kept) for t in range(half, length)], dim=1)
        value, where = max_deviation(after, forward(model, now)[:, half:])
    return pair.gap("beams", value, f"{where} after reordering, {cache.__name__}")


@register_check("generation", causal=True, continues=True)
def padded_decoding_equals_alone(pair: Case, cache: type[Cache] = DynamicCache) -> Deviation:
    """A left-padded batch decoded from a cache, as `generate` does it, equals each row read alone without one."""
    with pair.patched() as model:
        length = pair.length(pair.trained + 9, model)
        tokens = random_tokens(model, length, rows=3)
        pads = [0, 1, min(17, length - 8)]
        mask = torch.stack([(torch.arange(length) >= pad).long() for pad in pads]).to(tokens.device)
        sizes = chunk_sizes(length - 6, 1, length)
        together = forward_in_chunks(model, tokens, new_cache(cache, model, length), sizes, mask)
        alone = torch.zeros_like(together)
        for row, pad in enumerate(pads):
            alone[row, pad:] = forward(model, tokens[row : row + 1, pad:])[0]
        value, where = max_deviation(together, alone, mask.bool())
    return pair.gap("generation", value, f"{where}, {cache.__name__}")


@register_check("positions", causal=True, continues=True, company=True)
def cached_keys_stay_where_they_were(pair: Case, cache: type[Cache] = DynamicCache) -> Deviation:
    """A text whose caller numbers the tokens, with gaps that differ by row, reads from a cache as it does at once.

    The gaps are in the prefill, between two decoding steps and inside a chunk; rows of the cache are exchanged once.
    """
    with pair.patched() as model:
        length = pair.length(pair.trained + 20, model) - 8  # the widest gap, and one more
        tokens = random_tokens(model, length, rows=2)
        positions = positions_with_gaps(length).to(tokens.device)
        everything = torch.ones_like(tokens)  # or transformers takes gaps for the borders of packed texts
        whole = forward(model, tokens, position_ids=positions, attention_mask=everything)
        kept, parts, start, half = new_cache(cache, model, length), [], 0, length // 2
        rows, exchanged = torch.arange(2, device=tokens.device), torch.tensor([1, 0], device=tokens.device)
        for size in (half, 1, 1, 1, 1, 1, length - half - 5):
            if start == half + 2:
                kept.reorder_cache(exchanged)
                rows = exchanged
            now = slice(start, start + size)
            part = forward(
                model, tokens[rows, now], position_ids=positions[rows, now], past_key_values=kept,
                attention_mask=everything[:, : now.stop],
            )  # fmt: skip
            parts.append(part[rows])
            start += size
        value, where = max_deviation(torch.cat(parts, dim=1), whole)
    return pair.gap("positions", value, f"{where}, {cache.__name__}, positions of the caller's own with gaps")


@register_check("mask", causal=True, continues=True, costly=True)
def own_masks_hold_in_a_cache(pair: Case, cache: type[Cache] = DynamicCache) -> Deviation:
    """A text under a caller's own mask ``[batch, 1, query, key]`` reads from a cache as it does at once."""
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        tokens = random_tokens(model, length)
        hidden = torch.rand(1, 1, length, length, generator=torch.Generator().manual_seed(1)) < 0.3
        seen = (~hidden).tril() | torch.eye(length, dtype=torch.bool)
        dtype = next(model.parameters()).dtype
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min).to(tokens.device)
        whole = forward(model, tokens, attention_mask=mask)
        kept, parts, start = new_cache(cache, model, length), [], 0
        width = length if cache is StaticCache else 0
        for size in _some_then_chunks(min(pair.trained + 1, length // 2), length):
            now = slice(start, start + size)
            part = mask[:, :, now, : max(now.stop, width)]
            parts.append(forward(model, tokens[:, now], past_key_values=kept, attention_mask=part))
            start += size
        value, where = max_deviation(torch.cat(parts, dim=1), whole)
    return pair.gap("mask", value, f"{where}, {cache.__name__}, a mask of the caller's own")


def positions_with_gaps(length: int) -> Tensor:
    """Positions of two rows ``[2, token]``, that rise, by more than one here and there."""
    steps = torch.ones(2, length, dtype=torch.long)
    steps[:, 0] = 0
    steps[:, length // 3] += 3
    steps[1, length // 2 + 1] += 1
    steps[:, length // 2 + 3] += 2
    steps[0, length - 2] += 1
    return steps.cumsum(-1)


def _some_then_chunks(first: int, length: int) -> list[int]:
    single = min(4, length - first)
    return [first, *[1] * single, *chunk_sizes(0, 7, length - first - single)[1:]]
