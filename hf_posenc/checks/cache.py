"""Checks of the KV cache: outputs do not depend on how a text is split into cached chunks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import chunk_sizes, forward, forward_in_chunks, max_deviation, new_cache, random_tokens
from hf_posenc.checks.registry import Measured, register_check
from hf_posenc.schemes.base import Scheme

NEAR_POWERS_OF_TWO = tuple(near for power in (64, 128, 256, 512) for near in (power - 4, power + 4))
LONG_TEXT = NEAR_POWERS_OF_TWO[-1] + 4


@register_check("cache", needs=("causal", "continues_texts"))
def cached_equals_uncached(
    case: Case, cache: type[Cache] = DynamicCache, cut: int | None = None, step: int | None = None
) -> Measured:
    """A text in cached chunks equals the same text in one forward pass.

    Args:
        case: scheme and decoder.
        cache: class of the cache.
        cut: length of the first chunk; by default the trained length plus one.
        step: length of the other chunks. 1 decodes token by token; by default four single tokens, then chunks of 7.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 12, model)
        first = min(case.trained_length + 1 if cut is None else cut, length - 1)
        tokens = random_tokens(model, length)
        sizes = chunk_sizes(first, step, length) if step else _mixed_chunk_sizes(first, length)
        cached = forward_in_chunks(model, tokens, new_cache(cache, model, length), sizes)
        value, where = max_deviation(cached, forward(model, tokens))
    return value, f"{where}, {cache.__name__}, first chunk of {first}"


@register_check("long_text", needs=("causal", "continues_texts"), slow=True)
def long_text_cached_equals_uncached(case: Case) -> Measured:
    """A text of 520 tokens, in cached chunks that end near powers of two, equals the same text in one forward pass.

    Finds behaviour that changes at some number of keys beyond the short texts of the other checks.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(LONG_TEXT, model))
        cuts = [size for size in NEAR_POWERS_OF_TWO if size <= tokens.shape[1]]
        ends = [0, *cuts, tokens.shape[1]]
        sizes = [end - start for start, end in pairwise(ends) if end > start]
        cached = forward_in_chunks(model, tokens, new_cache(DynamicCache, model, tokens.shape[1]), sizes)
        return max_deviation(cached, forward(model, tokens))


@register_check("cache_reorder", needs=("causal", "continues_texts"))
def reordered_cache_equals_uncached(case: Case, cache: type[Cache] = DynamicCache) -> Measured:
    """After `Cache.reorder_cache`, as beam search calls it, decoding equals a forward pass of the reordered texts."""
    with case.patched() as model:
        length = case.clip_length(case.trained_length + 9, model)
        tokens = random_tokens(model, length, rows=3)
        order = torch.tensor([2, 0, 0], device=tokens.device)
        half = length - 5
        kv_cache = new_cache(cache, model, length)
        forward_in_chunks(model, tokens[:, :half], kv_cache, [half])
        kv_cache.reorder_cache(order)
        reordered = torch.cat((tokens[order, :half], tokens[:, half:]), dim=1)
        after = torch.cat([forward(model, reordered[:, t : t + 1], cache=kv_cache) for t in range(half, length)], dim=1)
        value, where = max_deviation(after, forward(model, reordered)[:, half:])
    return value, f"{where} after reordering, {cache.__name__}"


@register_check("padded_decoding", needs=("causal", "continues_texts"))
def padded_decoding_equals_unpadded(case: Case, cache: type[Cache] = DynamicCache) -> Measured:
    """Cached decoding of a left-padded batch, as in `generate`, equals a forward pass of each row without padding."""
    with case.patched() as model:
        length = case.clip_length(case.trained_length + 9, model)
        tokens = random_tokens(model, length, rows=3)
        pads = [0, 1, min(17, length - 8)]
        mask = torch.stack([(torch.arange(length) >= pad).long() for pad in pads]).to(tokens.device)
        sizes = chunk_sizes(length - 6, 1, length)
        batched = forward_in_chunks(model, tokens, new_cache(cache, model, length), sizes, mask)
        single = torch.zeros_like(batched)
        for row, pad in enumerate(pads):
            single[row, pad:] = forward(model, tokens[row : row + 1, pad:])[0]
        value, where = max_deviation(batched, single, mask.bool())
    return value, f"{where}, {cache.__name__}"


@register_check("position_ids", needs=("causal", "continues_texts", "is_deterministic"))
def position_ids_hold_in_cache(case: Case, cache: type[Cache] = DynamicCache) -> Measured:
    """Cached chunks of texts with ``position_ids`` that have gaps equal one forward pass.

    The gaps differ by row, and lie in the prefill, between decoding steps and inside a chunk. The rows of the cache are
    swapped once.
    """
    with case.patched() as model:
        length = case.clip_length(case.trained_length + 20, model) - 8  # room for the sum of the gaps
        tokens = random_tokens(model, length, rows=2)
        positions = positions_with_gaps(length).to(tokens.device)
        all_tokens = torch.ones_like(tokens)  # without it transformers takes gaps for borders of packed documents
        expected = forward(model, tokens, position_ids=positions, attention_mask=all_tokens)
        kv_cache, outputs, start = new_cache(cache, model, length), [], 0
        half = min(length // 2, length - 6)  # 8 tokens remain if a table ends at the trained length
        rows, swapped = torch.arange(2, device=tokens.device), torch.tensor([1, 0], device=tokens.device)
        for size in (half, 1, 1, 1, 1, 1, length - half - 5):
            if start == half + 2:
                kv_cache.reorder_cache(swapped)
                rows = swapped
            chunk = slice(start, start + size)
            output = forward(
                model, tokens[rows, chunk], position_ids=positions[rows, chunk], cache=kv_cache,
                attention_mask=all_tokens[:, : chunk.stop],
            )  # fmt: skip
            outputs.append(output[rows])
            start += size
        value, where = max_deviation(torch.cat(outputs, dim=1), expected)
    return value, f"{where}, {cache.__name__}, position_ids with gaps"


@register_check("custom_mask", needs=("causal", "continues_texts"), slow=True)
def custom_mask_holds_in_cache(case: Case, cache: type[Cache] = DynamicCache) -> Measured:
    """Cached chunks under a 4-D attention mask ``[batch, 1, query, key]`` equal one forward pass."""
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        tokens = random_tokens(model, length)
        hidden = torch.rand(1, 1, length, length, generator=torch.Generator().manual_seed(1)) < 0.3
        if any(module.sums_gates for module in model.modules() if isinstance(module, Scheme)):
            hidden = hidden.cumprod(-1).bool()  # first keys only: a hidden key may not follow a visible one
        visible = (~hidden).tril() | torch.eye(length, dtype=torch.bool)
        dtype = next(model.parameters()).dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min).to(tokens.device)
        expected = forward(model, tokens, attention_mask=mask)
        kv_cache, outputs, start = new_cache(cache, model, length), [], 0
        width = length if cache is StaticCache else 0
        for size in _mixed_chunk_sizes(min(case.trained_length + 1, length // 2), length):
            chunk = slice(start, start + size)
            rows = mask[:, :, chunk, : max(chunk.stop, width)]
            outputs.append(forward(model, tokens[:, chunk], cache=kv_cache, attention_mask=rows))
            start += size
        value, where = max_deviation(torch.cat(outputs, dim=1), expected)
    return value, f"{where}, {cache.__name__}, a 4-D attention mask"


def positions_with_gaps(length: int) -> Tensor:
    """Increasing positions of two rows ``[2, token]`` with gaps at different tokens."""
    steps = torch.ones(2, length, dtype=torch.long)
    steps[:, 0] = 0
    steps[:, length // 3] += 3
    steps[1, length // 2 + 1] += 1
    steps[:, length // 2 + 3] += 2
    steps[0, length - 2] += 1
    return steps.cumsum(-1)


def _mixed_chunk_sizes(first: int, length: int) -> list[int]:
    """Chunk lengths of a text: ``first`` tokens, up to four single tokens, then 7 at a time."""
    single = min(4, length - first)
    return [first, *[1] * single, *chunk_sizes(0, 7, length - first - single)[1:]]
