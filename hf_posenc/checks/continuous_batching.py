"""Check of continuous batching: requests that share a batch and a paged cache equal plain forward passes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import BackendCannotCarry

NEW = 6
MAX_BATCH_TOKENS = 24  # so that prompts are split into chunks and batched with tokens of other requests


@register_check(
    "continuous_batching", causal_only=True, needs_cache=True, slow=True, package="psutil"
)  # which transformers asks for memory
def continuous_batching_equals_forward(case: Case) -> Deviation:
    """Tokens and log-probabilities of `generate_batch` equal those of a forward pass of each text on its own."""
    with case.patched() as model:
        if not (hasattr(model, "can_generate") and model.can_generate()):
            return case.deviation("continuous_batching", 0.0, "no token: the model does not generate")
        prompt_length = case.clip_length(case.trained_length + NEW + 2, model) - NEW
        if prompt_length < 2:
            return case.deviation("continuous_batching", 0.0, "no token: the scheme has too few positions")
        first, second = (random_tokens(model, prompt_length, seed=seed)[0].tolist() for seed in (0, 1))
        prompts = [first, second[: max(1, prompt_length // 3)], first[: max(1, prompt_length - 3)], second[:1]]
        try:
            results = generate_batch(model, prompts)
        except BackendCannotCarry as error:
            return case.deviation("continuous_batching", 0.0, f"no token: refused, {error}")
        found = [(request_error(model, prompt, result), f"request {i}") for i, (prompt, result) in
                 enumerate(zip(prompts, results, strict=True))]  # fmt: skip
    return case.deviation("continuous_batching", *max(found))


def generate_batch(model: PreTrainedModel, prompts: list[list[int]], **settings: Any) -> list[Any]:
    """Results of the model's `generate_batch` with greedy decoding, in the order of the prompts."""
    plain = GenerationConfig(
        do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=-1, pad_token_id=0, bos_token_id=0
    )
    small = {"num_blocks": 4, "max_batch_tokens": MAX_BATCH_TOKENS, "return_logprobs": True}
    config = ContinuousBatchingConfig(**(small | settings))
    with _fewer_collected_objects():
        return list(model.generate_batch(prompts, generation_config=plain, continuous_batching_config=config).values())


def request_error(model: PreTrainedModel, prompt: list[int], result: Any) -> float:
    """Largest shortfall of a chosen token's logit from the best one, or error of its reported log-probability.

    Both relative to the standard deviation of the logits, at least 1. Infinite if the request failed.
    """
    tokens = result.generated_tokens
    if result.error is not None or len(tokens) != NEW:
        return inf
    whole = torch.tensor([prompt + tokens], device=model.device)
    logits = forward(model, whole)[0, len(prompt) - 1 : -1]
    chosen = logits.gather(-1, whole[0, len(prompt) :, None])[:, 0]
    reported = torch.tensor(result.logprobs, device=model.device)
    expected = logits.log_softmax(-1).gather(-1, whole[0, len(prompt) :, None])[:, 0]
    return float(
        torch.maximum(logits.amax(-1) - chosen, (reported - expected).abs()).max() / logits.std().clamp(min=1.0)
    )


@contextmanager
def _fewer_collected_objects() -> Iterator[None]:
    """Exempt existing objects from the three garbage collections a batch that transformers runs."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
