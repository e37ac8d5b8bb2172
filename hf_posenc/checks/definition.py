"""Checks of definition: outputs and gradients equal those of the scheme's formula."""

from __future__ import annotations

from transformers import DynamicCache

from hf_posenc.checks.batching import SIDES, pad_batch
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    chunk_sizes,
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    positions_from,
    random_tokens,
)
from hf_posenc.checks.reference_model import reference_logits, use_reference_attention
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.training import gradients, max_gradient_deviation


@register_check("formula", needs_determinism=True, slow=True)
def matches_definition(case: Case) -> Deviation:
    """Prefill, padded batches and cached decoding equal the scheme's formula, computed densely in float64.

    The formula (`hf_posenc.patching.reference_attention`) is evaluated for one text, without cache, mask or padding.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        texts = [random_tokens(model, length), random_tokens(model, max(1, length // 2), seed=1)]
        expected = [reference_logits(model, text) for text in texts]
        found = [
            (*max_deviation(forward(model, text), exact), "prefill")
            for text, exact in zip(texts, expected, strict=True)
        ]
        for side in SIDES:
            tokens, mask = pad_batch(texts, length, side)
            batched = forward(model, tokens, attention_mask=mask)
            for row, exact in enumerate(expected):
                unpadded = batched[row : row + 1, mask[row].bool()]
                found.append((*max_deviation(unpadded, exact), f"batch padded on the {side}"))
        if case.causal and not case.needs_whole_text:
            cache = new_cache(DynamicCache, model, length)
            sizes = chunk_sizes(min(case.trained_length - 1, length), 1, length)
            found.append((*max_deviation(forward_in_chunks(model, texts[0], cache, sizes), expected[0]), "decoding"))
    value, where, call = max(found, key=lambda one: (one[0] != one[0], one[0]))  # NaN counts as the largest
    return case.deviation("formula", value, f"{where}, {call}")


@register_check("formula_gradients", needs_determinism=True, slow=True)
def gradients_match_definition(case: Case) -> Deviation:
    """Gradients of every parameter, including the scheme's own, equal those of the formula.

    Relative to the largest entry of each gradient, or to 1/1000 of the largest of all: parameters without influence,
    such as the bias of the keys, which cancels in softmax, have gradients of rounding errors only.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        own = gradients(model, length, rows=1)
        with use_reference_attention(model, positions_from(model, length)):
            expected = gradients(model, length, rows=1)
    return case.deviation("formula_gradients", *max_gradient_deviation(own, expected))
