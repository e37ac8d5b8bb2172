"""Measure sliding windows, and whether the model has attention sinks at all.

The metric ``first token`` is the mean attention weight that queries in the second half of a window give to its first
token, over all layers and heads. It is measured once, of the model as it is, with the variant that the option
``with_attention`` names, at the trained length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hf_posenc.checkpoints.model_name import ModelName
from lab.cells import DocumentScore, Scores
from lab.finding import Job
from lab.sweep import sweep
from lab.text_windows import scored_windows, windows_of

FIRST_TOKEN = "first token"
WITHIN = 1.0


def streaming(job: Job) -> Iterator[tuple[float, Scores]]:
    """Score one scheme at all lengths of a job; of the model as it is, also its attention to the first token."""
    for at, scores in sweep(job):
        chosen = job.variant == job.options["with_attention"] and at == WITHIN
        yield at, {**scores, FIRST_TOKEN: first_token_weights(job)} if chosen else scores


@torch.no_grad()
def first_token_weights(job: Job) -> list[DocumentScore]:
    """Mean weight of the first token in windows of the trained length."""
    name = ModelName.of(job.model).model
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="eager").eval()
    length = model.config.max_position_embeddings
    windows = windows_of(job, length)
    found = []
    for window in windows:
        weights = model(input_ids=torch.tensor([window.ids[-length:]]), output_attentions=True).attentions
        found.append(torch.stack([layer[0, :, length // 2 :, 0].mean() for layer in weights]).mean())
    return scored_windows(windows, torch.stack(found))
