"""Checks of definition: outputs and gradients equal those of the scheme's formula, on every attention backend."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hf_posenc.checks.batching import SIDES, pad_batch
from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import (
    attention_backend,
    chunk_sizes,
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    positions_from,
    random_tokens,
)
from hf_posenc.checks.reference_model import reference_logits, use_reference_attention
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.checks.training import gradients, max_gradient_deviation


@register_check("formula", needs=("is_deterministic",), slow=True)
def matches_definition(case: Case) -> Measured:
    """Prefill, padded batches and cached decoding equal the scheme's formula, computed densely in float64.

    The formula (`hf_posenc.patching.reference_attention`) is evaluated for one text, without cache, mask or padding.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        texts = [random_tokens(model, length), random_tokens(model, max(1, length // 2), seed=1)]
        expected = [reference_logits(model, text) for text in texts]
        measured = [
            located(max_deviation(forward(model, text), exact), "prefill")
            for text, exact in zip(texts, expected, strict=True)
        ]
        for side in SIDES:
            tokens, mask = pad_batch(texts, length, side)
            batched = forward(model, tokens, attention_mask=mask)
            for row, exact in enumerate(expected):
                unpadded = batched[row : row + 1, mask[row].bool()]
                measured.append(located(max_deviation(unpadded, exact), f"batch padded on the {side}"))
        if case.causal and case.continues_texts:
            cache = new_cache(DynamicCache, model, length)
            sizes = chunk_sizes(min(case.trained_length - 1, length), 1, length)
            decoded = forward_in_chunks(model, texts[0], cache, sizes)
            measured.append(located(max_deviation(decoded, expected[0]), "decoding"))
    return worst(measured)


@register_check("formula_gradients", needs=("is_deterministic",), slow=True)
def gradients_match_definition(case: Case) -> Measured:
    """Gradients of every parameter, including the scheme's own, equal those of the formula.

    See `max_gradient_deviation` for the unit.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        measured = gradients(model, length, rows=1)
        with use_reference_attention(model, positions_from(model, length)):
            expected = gradients(model, length, rows=1)
    return max_gradient_deviation(measured, expected)


@register_check("backend", needs=("supports_sdpa",))
def backends_agree(case: Case) -> Measured:
    """``eager`` equals ``sdpa`` on one text, on batches padded on either side, and in cached decoding."""
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        with attention_backend(model, "eager"):
            eager = outputs_by_call(model, length, case)
        with attention_backend(model, "sdpa"):
            sdpa = outputs_by_call(model, length, case)
    return worst(located(max_deviation(output, sdpa[call][0], real), call) for call, (output, real) in eager.items())


def outputs_by_call(model: PreTrainedModel, length: int, case: Case) -> dict[str, tuple[Tensor, Tensor]]:
    """Outputs ``[row, token, width]`` of several kinds of call, each with a mask of its real tokens."""
    text = random_tokens(model, length)
    all_tokens = torch.ones_like(text, dtype=torch.bool)
    outputs = {"one text": (forward(model, text), all_tokens)}
    for side in SIDES:
        tokens, mask = pad_batch([text, random_tokens(model, length // 2, seed=1)], length, side)
        outputs[f"batch padded on the {side}"] = (forward(model, tokens, attention_mask=mask), mask.bool())
    if case.causal and case.continues_texts:
        cache = new_cache(DynamicCache, model, length)
        decoded = forward_in_chunks(model, text, cache, chunk_sizes(length - 3, 1, length))
        outputs["decoding"] = (decoded, all_tokens)
    return outputs
