"""Checks of checkpoints: a model or LoRA saved, exported or merged equals the one in memory."""

from __future__ import annotations

import copy
import math
import warnings
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import Conv1D, PreTrainedModel

from hf_posenc.checkpoints.export import export
from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checkpoints.native_parameters import rope_parameters_of
from hf_posenc.checkpoints.peft import load_peft_adapter, without_peft_noise
from hf_posenc.checks.case import Case, seeded_noise
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.errors import NotExpressible, OnlyWithinTrainedLength
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.state import base_model_of

if TYPE_CHECKING:
    from peft import PeftModel


@register_check("saving", needs=("is_registered",), needs_copy=True)
def saved_equals_loaded(case: Case) -> Measured:
    """Outputs of a patched model are bit-equal after saving and loading."""
    with case.patched() as model, TemporaryDirectory() as folder:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 9, model))
        model.save_pretrained(folder)
        before, after = forward(model, tokens), forward(from_pretrained(folder), tokens)
    return max_deviation(after, before)


@register_check("native_export", needs_copy=True)
def native_export_equals_patched(case: Case) -> Measured:
    """A model exported to a RoPE type of transformers, loaded without this package, equals the patched model.

    RoPE types that depend on the text length are compared at the trained length.
    """
    if case.rotary is None or case.rope_parameters is None:
        return 0.0, "no token: the unpatched model has no RoPE, or reads no RoPE type"
    with case.patched() as model, TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", OnlyWithinTrainedLength)
        try:
            _, short = rope_parameters_of(model)
        except NotExpressible:
            return 0.0, "no token: transformers has no such RoPE type"
        export(model, folder)
        tokens = random_tokens(model, case.trained_length if short else 2 * case.trained_length + 6)
        native = type(model).from_pretrained(folder, dtype=model.dtype).eval()
        return max_deviation(forward(native, tokens), forward(model, tokens))


@register_check("lora", needs=("is_registered",), needs_copy=True, slow=True, package="peft")
def lora_works_with_scheme(case: Case) -> Measured:
    """LoRA added before the patch equals LoRA added after it, merged, and loaded from its folder.

    Unloaded, it leaves the patched model. The value is the largest deviation; infinite if LoRA has no effect.
    """
    with case.unpatched() as model:
        base = copy.deepcopy(model)
        after = add_lora(case.apply(copy.deepcopy(base)))
        before = case.apply(add_lora(copy.deepcopy(base)))
        patched = case.apply(copy.deepcopy(base))
        tokens = random_tokens(patched, case.clip_length(case.trained_length + 5, patched))
        without_lora, expected = forward(patched, tokens), forward(after, tokens)
        if not max_deviation(expected, without_lora)[0] > EFFECT_FACTOR * NOISE_FLOOR:
            return math.inf, "the LoRA adapter has no effect"
        with TemporaryDirectory() as folder:
            after.save_pretrained(folder)
            loaded = load_peft_adapter(copy.deepcopy(base), folder, patch="apply")
        measured = [
            located(max_deviation(forward(before, tokens), expected), "added before the patch"),
            located(max_deviation(forward(loaded, tokens), expected), "loaded"),
            located(max_deviation(forward(copy.deepcopy(after).merge_and_unload(), tokens), expected), "merged"),
            located(max_deviation(forward(after.unload(), tokens), without_lora), "unloaded"),
        ]
    return worst(measured)


def add_lora(model: PreTrainedModel) -> PeftModel:
    """Wrap the model in a LoRA of rank 2 on its attention projections, with random weights."""
    import peft

    by_column = any(isinstance(part, Conv1D) for part in model.modules())
    config = peft.LoraConfig(r=2, target_modules=attention_projections(model), fan_in_fan_out=by_column)
    with without_peft_noise():
        adapted = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for weight, noise in seeded_noise(adapted, "lora_"):
            weight.copy_(0.1 * noise)
    return adapted


def attention_projections(model: nn.Module) -> list[str]:
    """Names of the linear layers of the model's attention modules."""
    base, adapter = base_model_of(model)
    layers = base.__dict__.get(ATTENTIONS) or adapter.attentions(base)
    parts = (child for layer in layers for child in layer.named_children())
    return sorted({name for name, part in parts if isinstance(part, (nn.Linear, Conv1D))})
