"""The check of continuous batching: requests that share a batch and a paged cache choose what plain readings choose."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import BackendCannotCarry

NEW = 6
AT_ONCE = 24  # tokens a batch: prompts are read in chunks, and beside tokens that others generate


@register_check(
    "continuous", causal=True, continues=True, costly=True, needs="psutil"
)  # which transformers asks for memory
def continuous_batches_choose_the_same(pair: Case) -> Deviation:
    """Tokens of `generate_batch`, and their log-probabilities, are those of plain readings of each text alone."""
    with pair.patched() as model:
        if not (hasattr(model, "can_generate") and model.can_generate()):
            return pair.gap("continuous", 0.0, "no token: the model does not generate")
        room = pair.length(pair.trained + NEW + 2, model) - NEW
        if room < 2:
            return pair.gap("continuous", 0.0, "no token: there is no room for any")
        first, second = (random_tokens(model, room, seed=seed)[0].tolist() for seed in (0, 1))
        prompts = [first, second[: max(1, room // 3)], first[: max(1, room - 3)], second[:1]]
        try:
            results = batched(model, prompts)
        except BackendCannotCarry as error:
            return pair.gap("continuous", 0.0, f"no token: refused, {error}")
        found = [(missed_in_batch(model, prompt, result), f"request {i}") for i, (prompt, result) in
                 enumerate(zip(prompts, results, strict=True))]  # fmt: skip
    return pair.gap("continuous", *max(found))


def batched(model: PreTrainedModel, prompts: list[list[int]], **settings: Any) -> list[Any]:
    """Results of `generate_batch` without sampling, in the order of the prompts."""
    plain = GenerationConfig(
        do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=-1, pad_token_id=0, bos_token_id=0
    )
    small = {"num_blocks": 4, "max_batch_tokens": AT_ONCE, "return_logprobs": True}
    config = ContinuousBatchingConfig(**(small | settings))
    with _little_garbage():
        return list(model.generate_batch(prompts, generation_config=plain, continuous_batching_config=config).values())


def missed_in_batch(model: PreTrainedModel, prompt: list[int], result: Any) -> float:
    """By how much a token of a result falls short of the best one, or its log-probability is off, in plain readings.

    Deviations of log-probabilities are in units of the spread of logits, at least 1.
    """
    tokens = result.generated_tokens
    if result.error is not None or len(tokens) != NEW:
        return inf
    whole = torch.tensor([prompt + tokens], device=model.device)
    logits = forward(model, whole)[0, len(prompt) - 1 : -1]
    chosen = logits.gather(-1, whole[0, len(prompt) :, None])[:, 0]
    said = torch.tensor(result.logprobs, device=model.device)
    known = logits.log_softmax(-1).gather(-1, whole[0, len(prompt) :, None])[:, 0]
    return float(torch.maximum(logits.amax(-1) - chosen, (said - known).abs()).max() / logits.std().clamp(min=1.0))


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Keep transformers, which collects garbage three times a batch, from going through all that is loaded."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
