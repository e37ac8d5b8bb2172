"""Checks of generation: helpers, beams and taken-back tokens choose what plain readings choose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    config_of,
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import BackendCannotCarry

NEW = 8
BEAMS = 3


@register_check("crop", causal=True, continues=True, costly=True)
def cropped_cache_goes_on(pair: Case) -> Deviation:
    """A cache that is cut back and continued with other tokens reads as if the cut ones had never been there."""
    with pair.patched() as model:
        length = pair.length(pair.trained + 9, model)
        tokens, other = random_tokens(model, length), random_tokens(model, length, seed=1)
        kept = max(1, length - 7)
        cache = new_cache(DynamicCache, model, length)
        forward_in_chunks(model, tokens, cache, [length])
        try:
            cache.crop(kept - length)  # a negative number is how many to take back
        except BackendCannotCarry:
            return pair.gap("crop", 0.0, "no token: refused, the cache forgets")
        now = torch.cat((tokens[:, :kept], other[:, kept:]), dim=1)
        after = [forward(model, now[:, t : t + 1], past_key_values=cache) for t in range(kept, length)]
        value, where = (
            max_deviation(torch.cat(after, dim=1), forward(model, now)[:, kept:]) if after else (0.0, "no token")
        )
    return pair.gap("crop", value, f"{where} after the cut")


@register_check("assisted", causal=True, continues=True, costly=True)
def helpers_choose_the_same(pair: Case) -> Deviation:
    """Tokens of greedy and of assisted decoding are the best of plain readings, and beams score what these give them.

    The value is by how much a chosen token misses the best one, or a beam's score the sum of its tokens': two choices
    that are as good up to rounding are both right.
    """
    with pair.patched() as model:
        if not (hasattr(model, "can_generate") and model.can_generate()):
            return pair.gap("assisted", 0.0, "no token: the model does not generate")
        room = pair.length(pair.trained + NEW + 2, model) - NEW
        if room < 2:
            return pair.gap("assisted", 0.0, "no token: there is no room for any")
        prompt = random_tokens(model, 5).repeat(1, room // 5 + 1)[:, :room]
        found = [(missed(model, generated(model, prompt), room), "greedy"), (misscored(model, prompt), "beams")]
        try:
            found.append((missed(model, generated(model, prompt, prompt_lookup_num_tokens=3), room), "assisted"))
        except BackendCannotCarry:
            found.append((0.0, "assisted, refused: the cache forgets"))
    value, how = max(found)
    return pair.gap("assisted", value, how)


def generated(model: PreTrainedModel, prompt: Tensor, **how: Any) -> Any:
    """Prompt and `NEW` tokens without sampling; with all that ``generate`` knows of them where it is asked for."""
    plain: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    # An end that no model says: without any, prompt lookup of transformers 5.4 raises a TypeError.
    ends: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": config_of(model).vocab_size, "bos_token_id": 0}
    with torch.no_grad():
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **plain, **ends, **how)


def missed(model: PreTrainedModel, tokens: Tensor, start: int) -> float:
    """By how much a token from ``start`` on falls short of the best a plain reading knows, in deviations of logits."""
    logits = forward(model, tokens)[:, start - 1 : -1]
    chosen = logits.gather(-1, tokens[:, start:, None])[..., 0]
    return float((logits.amax(-1) - chosen).max() / logits.std().clamp(min=1.0))


def misscored(model: PreTrainedModel, prompt: Tensor) -> float:
    """Largest deviation of a beam's score from the mean of its tokens' log-probabilities, in plain readings."""
    start = prompt.shape[1]
    asked: dict[str, Any] = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "length_penalty": 1.0}
    out = generated(model, prompt, return_dict_in_generate=True, output_scores=True, **asked)
    logs = forward(model, out.sequences)[:, start - 1 : -1].log_softmax(-1)
    sums = logs.gather(-1, out.sequences[:, start:, None])[..., 0].sum(-1)
    return float((sums / NEW - out.sequences_scores.float()).abs().max())
