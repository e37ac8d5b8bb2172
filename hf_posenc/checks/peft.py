"""Check of PEFT: LoRA added before or after the patch, merged, unloaded, saved and loaded gives the same model."""

from __future__ import annotations

import copy
import math
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Conv1D, PreTrainedModel

from hf_posenc.checkpoints.peft import get_peft_model, load_peft_adapter, save_peft_adapter
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.core.torch_state import drawn_from
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.state import base_model_of

if TYPE_CHECKING:
    from peft import PeftModel


@register_check("lora", needs_copy=True, slow=True, needs_name=True, package="peft")
def lora_works_with_scheme(case: Case) -> Deviation:
    """LoRA added before the patch equals LoRA added after it, merged, and loaded from its folder.

    Unloaded, it leaves the patched model. The value is the largest deviation; infinite if LoRA has no effect.
    """
    with case.unpatched() as model:
        base = copy.deepcopy(model)
        after = add_lora(_patch(case, copy.deepcopy(base)))
        before = _patch(case, add_lora(copy.deepcopy(base)))
        patched = _patch(case, copy.deepcopy(base))
        tokens = random_tokens(patched, case.clip_length(case.trained_length + 5, patched))
        without_lora, expected = forward(patched, tokens), forward(after, tokens)
        if not max_deviation(expected, without_lora)[0] > EFFECT_FACTOR * NOISE_FLOOR:
            return case.deviation("lora", math.inf, "the LoRA adapter has no effect")
        with tempfile.TemporaryDirectory() as folder:
            save_peft_adapter(after, folder)
            loaded = load_peft_adapter(copy.deepcopy(base), folder, patch="apply")
        found = [
            (*max_deviation(forward(before, tokens), expected), "added before the patch"),
            (*max_deviation(forward(loaded, tokens), expected), "loaded"),
            (*max_deviation(forward(copy.deepcopy(after).merge_and_unload(), tokens), expected), "merged"),
            (*max_deviation(forward(after.unload(), tokens), without_lora), "unloaded"),
        ]
    value, where, how = max(found, key=lambda one: one[0])
    return case.deviation("lora", value, f"{where}, {how}")


def add_lora(model: PreTrainedModel) -> PeftModel:
    """Wrap the model in a LoRA of rank 2 on its attention projections, with random weights."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=attention_projections(model), fan_in_fan_out=_has_conv1d(model))
    adapted = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            noise = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
            with torch.no_grad():
                weight.copy_(0.1 * noise)
    return adapted


def _patch(case: Case, model: PreTrainedModel) -> PreTrainedModel:
    with drawn_from(0):  # equal initial parameters of the scheme
        return case.apply(model)


def attention_projections(model: nn.Module) -> list[str]:
    """Names of the linear layers of the model's attention modules."""
    return sorted({name for layer in _attentions(model) for name, part in layer.named_children() if _is_linear(part)})


def _attentions(model: nn.Module) -> Any:
    base, adapter = base_model_of(model)
    return base.__dict__.get(ATTENTIONS) or adapter.attentions(base)


def _is_linear(part: nn.Module) -> bool:
    return isinstance(part, (nn.Linear, Conv1D))


def _has_conv1d(model: nn.Module) -> bool:
    return any(isinstance(part, Conv1D) for part in model.modules())
