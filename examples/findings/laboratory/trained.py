"""Measure a trained model at several lengths: under a scheme patched for each length, or after brief fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from verdict import Score, Scores

from hf_posenc import patch_model, unpatch_model
from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.task_run import suppress_output
from hf_posenc.eval.texts.measured_text import TRAINING, default_text, module_text
from hf_posenc.eval.texts.sampling import placed
from hf_posenc.eval.texts.windows import tokenized_documents
from hf_posenc.starters.loading import load_starter
from hf_posenc.training import finetune
from hf_posenc.training.recipes import recipe_of

DOCUMENTS = 0
"""Random seed of windows, keys and masks: documents are equal under every seed of a finding."""
TRAINED = 256
"""Trained length of the bundled models; the configuration of a patched model holds the target length instead."""
MODULES = TRAINING[::8]
"""Enough text for some hundred thousand tokens to train on."""


def with_scheme(
    settings: Mapping[str, Any], points: Sequence[float], seed: int, *, model: str = "llama", **options: Any
) -> Iterator[tuple[float, Scores]]:
    """Score a bundled model under a scheme, which is patched again for each length; ``stretch`` scales the factor."""
    lm, scheme = measurable(model), settings.get("scheme")
    for at in points:
        if scheme is not None:
            patch_model(lm.model, scheme, factor=settings.get("stretch", 1.0) * at)
        try:
            yield at, scores_at(lm, at, max(points), **options)
        finally:
            if scheme is not None:
                unpatch_model(lm.model)


@lru_cache(maxsize=1)
def measurable(name: str) -> Any:
    """The lm-eval model object of a bundled model, cached because every variant needs it."""
    with suppress_output():
        return language_model(*load_starter(name))


def tuned(
    settings: Mapping[str, Any], points: Sequence[float], seed: int, *, training: Mapping[str, Any], **options: Any
) -> Iterator[tuple[float, Scores]]:
    """Patch the bundled Llama for the longest length, train it by a recipe, and score it at all lengths.

    ``settings`` may have a ``scheme`` with ``options``, a ``recipe`` of `hf_posenc.training.RECIPES` (without one,
    nothing is trained), further ``training`` settings, and ``lora_alone``: the rank of LoRA without norms and
    embeddings.
    """
    model, tokenizer = load_starter("llama")
    recipe = recipe_of(settings["recipe"]) if "recipe" in settings else None
    scheme = settings.get("scheme") if recipe is None else recipe.scheme(settings.get("scheme"))
    if scheme is not None:
        patch_model(model, scheme, factor=max(points), **settings.get("options", {}))
    if recipe is not None:
        plan = recipe.training(model, **{**training, **settings.get("training", {}), "seed": seed})
        if "lora_alone" in settings:
            model, plan = lora_alone(model, settings["lora_alone"]), replace(plan, chunked_loss=False)
        model = finetune(model, tokenizer, [module_text(name) for name in MODULES], plan).model
    with suppress_output():
        lm = language_model(model, tokenizer)
    for at in points:
        yield at, scores_at(lm, at, max(points), **options)


def scores_at(lm: Any, at: float, longest: float, *, scores: Mapping[str, Sequence[Any]], **options: Any) -> Scores:
    """Scores of documents at one length; ``scores`` maps a metric to a task and the task's name of the metric.

    All lengths have the same targets, because every target has a context of ``longest`` before it.
    """
    documents = evaluate(
        lm, tasks=list(dict.fromkeys(task for task, _ in scores.values())), seed=DOCUMENTS,
        lengths=[round(at * TRAINED)], longest=round(longest * TRAINED), **options,
    ).documents  # fmt: skip
    return {
        name: [
            Score(d.document, d.cluster, d.value) for d in documents if (d.task, d.metric, d.depth) == (*which, None)
        ]
        for name, which in scores.items()
    }


def lora_alone(model: Any, rank: int) -> Any:
    """Add LoRA to every linear layer of a model; nothing else is trained."""
    from peft import LoraConfig, get_peft_model

    from hf_posenc.training.trained_layers import linear_layers

    torch.manual_seed(0)  # for the random matrices of LoRA
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=linear_layers(model))
    return get_peft_model(model, config)


@lru_cache(maxsize=2)
def windows(samples: int, longest: int) -> tuple[Tensor, list[tuple[str, str]]]:
    """Windows of held-out source code, ``[window, token]``, with the name of each and of its cluster."""
    _, tokenizer = load_starter("llama")
    documents = tokenized_documents(tokenizer, default_text())
    ends = [(source, end) for source, own in placed(documents, samples, longest, DOCUMENTS) for end in own]
    single_text = len(documents) == 1  # its windows are an independent sample, and the result is about this text
    ids = torch.tensor([source.ids[end - longest : end] for source, end in ends])
    return ids, [(f"{s.name} {end}".strip(), str(end) if single_text else s.name) for s, end in ends]


def scored(names: Sequence[tuple[str, str]], values: Tensor) -> list[Score]:
    """One score for each window."""
    return [Score(*name, value) for name, value in zip(names, values.tolist(), strict=True)]


def token_losses(logits: Tensor, ids: Tensor, last: int) -> Tensor:
    """Cross-entropy of the last ``last`` tokens of each row of ``ids [row, token]``, nats, ``[row, last]``."""
    losses = torch.nn.functional.cross_entropy(
        logits[:, -last - 1 : -1].flatten(0, 1), ids[:, -last:].flatten(), reduction="none"
    )
    return losses.view(len(ids), last)
