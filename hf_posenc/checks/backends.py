"""Check of backends: which one computes attention must not show."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from hf_posenc.checks.batching import SIDES, padded
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
def backends_agree(pair: Case) -> Deviation:
    """``eager`` equals ``sdpa``: on a plain text, on a batch padded on either side, and decoding."""
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation(REFERENCE)
            one = readings(model, length, pair)
            model.set_attn_implementation(FAST)
            two = readings(model, length, pair)
        finally:
            model.set_attn_implementation(before)
    found = [(*max_deviation(one[name][0], two[name][0], one[name][1]), name) for name in one]
    value, where, which = max(found, key=lambda gap: gap[0])
    return pair.gap("backend", value, f"{where} of {which}, {REFERENCE} against {FAST}")


def readings(model: PreTrainedModel, length: int, pair: Case) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits of several kinds of call, and which of their tokens are real."""
    plain = random_tokens(model, length)
    everything = torch.ones_like(plain, dtype=torch.bool)
    found = {"a plain text": (forward(model, plain), everything)}
    for side in SIDES:
        tokens, mask = padded([plain, random_tokens(model, length // 2, seed=1)], length, side)
        found[f"a batch padded on the {side}"] = (forward(model, tokens, attention_mask=mask), mask.bool())
    if pair.causal and not pair.needs_whole_text:
        cache = new_cache(DynamicCache, model, length)
        found["decoding"] = (forward_in_chunks(model, plain, cache, chunk_sizes(length - 3, 1, length)), everything)
    return found
