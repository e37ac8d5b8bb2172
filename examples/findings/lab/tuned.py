"""Measure a variant that is a brief fine-tuning of a trained model.

The settings of a variant:

    scheme      name of a scheme, or None; patched for ``factor`` of the options
    options     of the scheme
    recipe      of `hf_posenc.training.RECIPES`; None trains nothing
    training    settings of `hf_posenc.training.Training`, over those of the options
    lora_alone  whether LoRA's matrices are trained without norms and embeddings

It is trained on a part of the modules that the bundled models were trained on, and measured by
`lab.sweep` on the held-out text, with one factor at all lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.eval.texts.stdlib_source import TRAINING, module_text
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.entry import Entry
from hf_posenc.training import finetune
from hf_posenc.training.recipes import recipe_of
from lab.cells import Scores
from lab.finding import Job
from lab.sweep import sweep_of

MODULES = TRAINING[::8]
"""Enough text for some hundred thousand tokens; all of it would take longer to read than to train on."""


def tuned(job: Job) -> Iterator[tuple[float, Scores]]:
    """Fine-tune a model as the variant says, and score it at all lengths of a job."""
    named = ModelName.of(job.model)
    model: Any = from_pretrained(named.model, peft_adapter=named.adapter, dtype="float32")
    tokenizer = tokenizer_of(named)
    with suppress_output(True):
        trained = trained_model(model, tokenizer, job)
        lm = language_model(trained, tokenizer)
    yield from sweep_of(lm, Entry(job.variant, None), job)


def trained_model(model: Any, tokenizer: Any, job: Job) -> Any:
    """The model with the scheme of the variant, trained by its recipe."""
    given: Mapping[str, Any] = {"options": {}, "recipe": None, "training": {}, **job.settings}
    recipe = None if given["recipe"] is None else recipe_of(given["recipe"])
    scheme = given["scheme"] if recipe is None else recipe.scheme(given["scheme"])
    if scheme is not None:
        patch_model(model, scheme, factor=job.options["factor"], **given["options"])
    if recipe is None:
        return model
    settings = {**job.options.get("training", {}), **given["training"], "seed": job.seed}
    training = recipe.training(model, **settings)
    if rank := given.get("lora_alone"):
        model, training = lora_alone(model, rank), replace(training, chunked_loss=False)
    return finetune(
        model, tokenizer, [module_text(name) for name in MODULES], training,
        progress=lambda share, loss: job.progress(share / 2, f"training, loss {loss:.2f}"),
    ).model  # fmt: skip


def lora_alone(model: Any, rank: int) -> Any:
    """The model with LoRA's matrices beside every linear layer, and nothing else to train."""
    from peft import LoraConfig

    from hf_posenc.checkpoints.peft import get_peft_model
    from hf_posenc.training.trained_layers import linear_layers

    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=linear_layers(model))
    return get_peft_model(model, config)
