"""Checks of generation: greedy, beam, assisted and batched decoding choose the tokens of plain forward passes."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig, PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import (
    config_of,
    earlier_objects_set_aside,
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.registry import Measured, register_check, worst
from hf_posenc.errors import BackendCannotCarry

NEW = 8
BEAMS = 3


@register_check("cache_crop", needs=("causal", "continues_texts"), slow=True)
def cropped_cache_equals_uncached(case: Case) -> Measured:
    """After `Cache.crop`, decoding other tokens equals a forward pass of the edited text."""
    with case.patched() as model:
        length = case.clip_length(case.trained_length + 9, model)
        tokens, other = random_tokens(model, length), random_tokens(model, length, seed=1)
        prefix = max(1, length - 7)
        cache = new_cache(DynamicCache, model, length)
        forward_in_chunks(model, tokens, cache, [length])
        try:
            cache.crop(prefix - length)  # a negative number is the number of tokens to remove
        except BackendCannotCarry:
            return 0.0, "no token: refused, the cache evicts keys"
        edited = torch.cat((tokens[:, :prefix], other[:, prefix:]), dim=1)
        after = [forward(model, edited[:, t : t + 1], cache=cache) for t in range(prefix, length)]
        if not after:
            return 0.0, "no token after cropping"
        value, where = max_deviation(torch.cat(after, dim=1), forward(model, edited)[:, prefix:])
    return value, f"{where} after cropping"


@register_check("generate", needs=("causal", "continues_texts"), slow=True)
def generate_chooses_best_tokens(case: Case) -> Measured:
    """Greedy and assisted decoding choose the tokens with the best logits of a forward pass; beam scores are right.

    The value is the largest shortfall of a chosen token's logit from the best one, or error of a beam's score. Ties up
    to rounding therefore pass.
    """
    with case.patched() as model:
        prompt_length, reason = _prompt_length(case, model)
        if reason:
            return 0.0, reason
        prompt = random_tokens(model, 5).repeat(1, prompt_length // 5 + 1)[:, :prompt_length]
        measured = [
            (logit_shortfall(model, generate_tokens(model, prompt), prompt_length), "greedy"),
            (beam_score_error(model, prompt), "beam search"),
        ]
        try:
            assisted = generate_tokens(model, prompt, prompt_lookup_num_tokens=3)
            measured.append((logit_shortfall(model, assisted, prompt_length), "assisted decoding"))
        except (BackendCannotCarry, ValueError) as error:  # transformers raises ValueError from 5.24 on
            if isinstance(error, ValueError) and "crop" not in str(error):
                raise
            measured.append((0.0, "assisted decoding: refused, the cache evicts keys"))
    return worst(measured)


def _prompt_length(case: Case, model: PreTrainedModel) -> tuple[int, str]:
    """Length of a prompt whose continuation crosses the trained length, and the reason if there is none, or ``""``."""
    if not (hasattr(model, "can_generate") and model.can_generate()):
        return 0, "no token: the model does not generate"
    length = case.clip_length(case.trained_length + NEW + 2, model) - NEW
    return length, "" if length >= 2 else "no token: the scheme has too few positions"


def generate_tokens(model: PreTrainedModel, prompt: Tensor, **settings: Any) -> Any:
    """Call `generate` for `NEW` tokens without sampling; ``settings`` adds keywords such as ``num_beams``."""
    greedy: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    # An id outside the vocabulary: with None, prompt lookup of transformers 5.4 raises a TypeError.
    ends: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": config_of(model).vocab_size, "bos_token_id": 0}
    with torch.no_grad():
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **greedy, **ends, **settings)


def logit_shortfall(model: PreTrainedModel, tokens: Tensor, start: int) -> float:
    """Largest shortfall of a token from ``start`` on behind the best logit, in standard deviations of the logits."""
    logits = forward(model, tokens)[:, start - 1 : -1]
    chosen = logits.gather(-1, tokens[:, start:, None])[..., 0]
    return float((logits.amax(-1) - chosen).max() / logits.std().clamp(min=1.0))


def beam_score_error(model: PreTrainedModel, prompt: Tensor) -> float:
    """Largest error of a beam's score, which should be the mean log-probability of its tokens in a forward pass."""
    start = prompt.shape[1]
    keywords: dict[str, Any] = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "length_penalty": 1.0}
    out = generate_tokens(model, prompt, return_dict_in_generate=True, output_scores=True, **keywords)
    logs = forward(model, out.sequences)[:, start - 1 : -1].log_softmax(-1)
    sums = logs.gather(-1, out.sequences[:, start:, None])[..., 0].sum(-1)
    return float((sums / NEW - out.sequences_scores.float()).abs().max())


MAX_BATCH_TOKENS = 24  # small, so the batch splits prompts and mixes tokens of several requests


@register_check("continuous_batching", needs=("causal", "continues_texts"), slow=True)
def continuous_batching_equals_forward(case: Case) -> Measured:
    """Tokens and log-probabilities of `generate_batch` equal those of a forward pass of each text on its own."""
    with case.patched() as model:
        prompt_length, reason = _prompt_length(case, model)
        if reason:
            return 0.0, reason
        first, second = (random_tokens(model, prompt_length, seed=seed)[0].tolist() for seed in (0, 1))
        prompts = [first, second[: max(1, prompt_length // 3)], first[: max(1, prompt_length - 3)], second[:1]]
        try:
            results = generate_batch(model, prompts)
        except BackendCannotCarry as error:
            return 0.0, f"no token: refused, {error}"
        measured = [(request_error(model, prompt, result), f"request {i}") for i, (prompt, result) in
                 enumerate(zip(prompts, results, strict=True))]  # fmt: skip
    return worst(measured)


def generate_batch(model: PreTrainedModel, prompts: list[list[int]], **settings: Any) -> list[Any]:
    """Results of the model's `generate_batch` with greedy decoding, in the order of the prompts."""
    greedy = GenerationConfig(
        do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=-1, pad_token_id=0, bos_token_id=0
    )
    small = {"num_blocks": 4, "max_batch_tokens": MAX_BATCH_TOKENS, "return_logprobs": True}
    config = ContinuousBatchingConfig(**(small | settings))
    with earlier_objects_set_aside():  # transformers collects garbage three times per batch
        return list(model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=config).values())


def request_error(model: PreTrainedModel, prompt: list[int], result: Any) -> float:
    """Largest shortfall of a chosen token's logit from the best one, or error of its reported log-probability.

    Both relative to the standard deviation of the logits, at least 1. Infinite if the request failed.
    """
    tokens = result.generated_tokens
    if result.error is not None or len(tokens) != NEW:
        return inf
    text = torch.tensor([prompt + tokens], device=model.device)
    logits = forward(model, text)[0, len(prompt) - 1 : -1]
    chosen = logits.gather(-1, text[0, len(prompt) :, None])[:, 0]
    reported = torch.tensor(result.logprobs, device=model.device)
    expected = logits.log_softmax(-1).gather(-1, text[0, len(prompt) :, None])[:, 0]
    return float(
        torch.maximum(logits.amax(-1) - chosen, (reported - expected).abs()).max() / logits.std().clamp(min=1.0)
    )
