"""Check of attention backends: ``eager`` and ``sdpa`` give the same outputs."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hf_posenc.checks.batching import SIDES, pad_batch
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

REFERENCE, FAST = "eager", "sdpa"


@register_check("backend")
def backends_agree(case: Case) -> Deviation:
    """``eager`` equals ``sdpa`` on one text, on batches padded on either side, and in cached decoding."""
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation(REFERENCE)
            one = outputs_by_call(model, length, case)
            model.set_attn_implementation(FAST)
            two = outputs_by_call(model, length, case)
        finally:
            model.set_attn_implementation(before)
    found = [(*max_deviation(one[name][0], two[name][0], one[name][1]), name) for name in one]
    value, where, call = max(found, key=lambda one: one[0])
    return case.deviation("backend", value, f"{where} of {call}, {REFERENCE} against {FAST}")


def outputs_by_call(model: PreTrainedModel, length: int, case: Case) -> dict[str, tuple[Tensor, Tensor]]:
    """Outputs ``[row, token, width]`` of several kinds of call, with a mask ``[row, token]`` of their real tokens."""
    text = random_tokens(model, length)
    all_tokens = torch.ones_like(text, dtype=torch.bool)
    found = {"one text": (forward(model, text), all_tokens)}
    for side in SIDES:
        tokens, mask = pad_batch([text, random_tokens(model, length // 2, seed=1)], length, side)
        found[f"batch padded on the {side}"] = (forward(model, tokens, attention_mask=mask), mask.bool())
    if case.causal and not case.needs_whole_text:
        cache = new_cache(DynamicCache, model, length)
        found["decoding"] = (forward_in_chunks(model, text, cache, chunk_sizes(length - 3, 1, length)), all_tokens)
    return found
