"""Check of adapters: LoRA before or after the patch, merged, taken off, saved and loaded is one and the same model."""

from __future__ import annotations

import copy
import math
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hf_posenc.checkpoints.peft import get_peft_model, load_peft_adapter, save_peft_adapter
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.patching.state import base_model_of

if TYPE_CHECKING:
    from peft import PeftModel


@register_check("adapters", copies=True, costly=True, named=True, needs="peft")
def adapters_go_with_the_scheme(pair: Case) -> Deviation:
    """A tiny LoRA put on before the patch reads as one put on after it, merged, and from its own folder.

    Taken off, it leaves the patched model. The value is the largest deviation; infinite where the adapter did nothing.
    """
    with pair.host() as model:
        base = copy.deepcopy(model)
        after = wrapped(_patched(pair, copy.deepcopy(base)))
        before = _patched(pair, wrapped(copy.deepcopy(base)))  # type: ignore[arg-type]
        alone = _patched(pair, copy.deepcopy(base))
        tokens = random_tokens(alone, pair.length(pair.trained + 5, alone))
        plain, wanted = forward(alone, tokens), forward(after, tokens)
        if not max_deviation(wanted, plain)[0] > EFFECT_FACTOR * NOISE_FLOOR:
            return pair.gap("adapters", math.inf, "an adapter without effect")
        with tempfile.TemporaryDirectory() as folder:
            save_peft_adapter(after, folder)
            loaded = load_peft_adapter(copy.deepcopy(base), folder, patch="apply")
        found = [
            (*max_deviation(forward(before, tokens), wanted), "put on before the patch"),
            (*max_deviation(forward(loaded, tokens), wanted), "loaded"),
            (*max_deviation(forward(copy.deepcopy(after).merge_and_unload(), tokens), wanted), "merged"),
            (*max_deviation(forward(after.unload(), tokens), plain), "taken off"),
        ]
    value, where, how = max(found, key=lambda gap: gap[0])
    return pair.gap("adapters", value, f"{where}, {how}")


def wrapped(model: PreTrainedModel) -> PeftModel:
    """The model in a LoRA of rank 2 on its attention projections, away from where it starts."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=projections(model), fan_in_fan_out=_transposed(model))
    adapted = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            noise = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
            with torch.no_grad():
                weight.copy_(0.1 * noise)
    return adapted


def _patched(pair: Case, model: PreTrainedModel) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what a scheme learns starts alike each time
        return pair.apply(model)


def projections(model: nn.Module) -> list[str]:
    """Names of the linear maps inside the model's attention modules."""
    return sorted({name for layer in _attentions(model) for name, part in layer.named_children() if _linear(part)})


def _attentions(model: nn.Module) -> Any:
    base, adapter = base_model_of(model)
    known = (*adapter.attention, *adapter.attention.values())
    return (module for module in base.modules() if type(module) in known)


def _linear(part: nn.Module) -> bool:
    return isinstance(part, (nn.Linear, Conv1D))


def _transposed(model: nn.Module) -> bool:
    return any(isinstance(part, Conv1D) for part in model.modules())
