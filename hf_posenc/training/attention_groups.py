"""Shifted sparse attention in a fine-tuning run: which runs it is for, and where it is turned on."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn

from hf_posenc.errors import TrainingImpossible
from hf_posenc.patches.validate_adapter import probed
from hf_posenc.patching.state import base_model_of, describe, is_patched, scheme_of
from hf_posenc.training.config import Training
from hf_posenc.training.shifted_attention import shifted_groups


def grouped_attention(model: nn.Module, training: Training) -> AbstractContextManager[None]:
    """Inside the block, and in training mode, a model attends within groups as the settings say."""
    return shifted_groups(
        model, None if training.attention_groups == 1 else training.length // training.attention_groups
    )


def check_attention_groups(model: nn.Module, training: Training, *, causal: bool) -> None:
    """Refuse attention within groups where it would have no effect, or is not defined.

    A layer is tried on four tokens in groups of two, so that heads and schemes are refused before texts are read.

    Raises:
        TrainingImpossible: the settings ask for it, and the model is an encoder or not patched, or its attention cannot
            be divided.
    """
    if training.attention_groups == 1:
        return
    asked = f"attention_groups={training.attention_groups} was asked for, and"
    if not causal:
        raise TrainingImpossible(f"{asked} shifted sparse attention is defined for causal models. Leave it out.")
    if not is_patched(model):
        raise TrainingImpossible(f"{asked} this model is not patched. Patch it first (--scheme, such as yarn).")
    if describe(model).proof.verdict != "deferred":  # where a layer cannot be run alone, the first step will tell
        try_a_layer(model)


def try_a_layer(model: nn.Module) -> None:
    """Run the first layer on four tokens in groups of two.

    Raises:
        TrainingImpossible: its attention cannot be divided.
    """
    base, adapter = base_model_of(model)
    parameter = next(base.parameters())
    hidden = torch.zeros(1, 4, scheme_of(model).geometry.width, dtype=parameter.dtype, device=parameter.device)
    in_eval_mode = [module for module in base.modules() if not module.training]
    for module in in_eval_mode:
        module.training = True
    try:
        with torch.no_grad(), shifted_groups(model, 2):
            probed(adapter, base, hidden, torch.arange(4, device=parameter.device)[None], 0)
    finally:
        for module in in_eval_mode:
            module.training = False
