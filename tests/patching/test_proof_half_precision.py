"""The proof of effect in half precision: as sharp as in float32, on models whose scores are as weak as at random.

Half precision rounds outputs by 1e-3 to 1e-2, which is more than most schemes move those of an untrained model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from hf_posenc import describe, is_patched, list_schemes, patch_model
from hf_posenc.errors import NoEffect, PosEncError, UnsupportedModel
from hf_posenc.forward import call_plan
from hf_posenc.patching import proof as effect_probe
from hf_posenc.schemes.rotary.rotary import RoPE

from ..families.tiny import tiny
from ..small_models import llama
from .test_proof import other_rotation

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
ONE_A_HOOK = {"yarn", "dynamic_ntk", "self_extend", "alibi", "fox", "shaw", "logn", "window", "sinks", "learned"}
SCHEMES = [
    pytest.param(record.name, marks=() if record.name in ONE_A_HOOK else pytest.mark.slow) for record in list_schemes()
]


def untrained() -> LlamaForCausalLM:
    """A small Llama as transformers initialises it."""
    return llama(vocab_size=99, hidden_size=64, max_position_embeddings=256, initializer_range=0.02)


def verdict(model: Any, scheme: str, **options: Any) -> str:
    """Of the proof; or the name of the error that a patch ends in."""
    try:
        return describe(patch_model(model, scheme, **options)).proof.verdict
    except PosEncError as error:
        return type(error).__name__


@HALF
@pytest.mark.parametrize("factor", [None, 4])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.filterwarnings("ignore::hf_posenc.errors.NothingStretched")
def test_every_scheme_is_judged_as_in_float32(scheme: str, factor: float | None, dtype: torch.dtype) -> None:
    in_float32 = verdict(untrained(), scheme, factor=factor)
    model = untrained().to(dtype)
    assert in_float32 != "NoEffect"
    assert verdict(model, scheme, factor=factor) == in_float32
    assert {weight.dtype for name, weight in model.named_parameters() if "posenc" not in name} == {dtype}


@HALF
def test_the_control_without_float32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested above is seen: run as it is, the model hides what ReRoPE does."""
    monkeypatch.setattr(effect_probe, "runs_in_float32", lambda attentions, backend: False)
    assert verdict(untrained().to(dtype), "rerope") == "NoEffect"


class Packed(nn.Module):
    """A projection as quantisers leave it: packed weights, and a kernel that reads one half-precision type alone."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.dtype, self.scale = linear.weight.dtype, linear.weight.abs().max().item() / 127
        self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == self.dtype
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale)


def as_it_is(model: LlamaForCausalLM) -> LlamaForCausalLM:
    return model


def quantised(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """With all projections of attention packed."""
    for layer in model.model.layers:
        for name, linear in list(layer.self_attn.named_children()):
            setattr(layer.self_attn, name, Packed(linear))
    return model


@pytest.mark.slow
@HALF
@pytest.mark.parametrize("scheme", [record.name for record in list_schemes()])
@pytest.mark.filterwarnings("ignore::hf_posenc.errors.NothingStretched")
def test_every_scheme_on_quantised_projections_is_judged_as_in_float32(scheme: str, dtype: torch.dtype) -> None:
    """Their kernels read half precision, and what is between them is run in float32."""
    model = quantised(untrained().to(dtype))
    assert verdict(model, scheme, factor=4) == verdict(untrained(), scheme, factor=4)
    with torch.no_grad():
        assert model(torch.ones(1, 20, dtype=torch.long)).logits.dtype == dtype
    assert not any(layer.self_attn.q_proj._forward_pre_hooks for layer in model.model.layers)


@HALF
@pytest.mark.parametrize("made", [as_it_is, quantised])
@pytest.mark.parametrize("scheme", ["pi", "ntk"])
def test_a_rotation_that_nobody_applies(
    scheme: str, made: Callable[..., LlamaForCausalLM], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(untrained().to(dtype))
    monkeypatch.setattr(call_plan, "region_rotations", other_rotation(RoPE))
    with pytest.raises(NoEffect, match="nothing moved"):
        patch_model(model, scheme, factor=4)
    assert not is_patched(model)


def test_what_overflows_in_the_models_own_dtype_alone() -> None:
    def wide(dtype: torch.dtype) -> LlamaForCausalLM:
        model = untrained()
        model.model.layers[0].input_layernorm.weight.data *= 3e4
        model.model.layers[0].self_attn.v_proj.weight.data *= 100
        return model.to(dtype)

    assert verdict(wide(torch.float32), "yarn", factor=4) == "moved"
    with pytest.raises(NoEffect, match="infinite or NaN"):
        patch_model(wide(torch.float16), "yarn", factor=4)


@HALF
@pytest.mark.parametrize("scheme", ["window", "yarn", "rerope", "fox"])
@pytest.mark.parametrize("family", ["cohere2", "bitnet", "gpt_neox"])
def test_families_whose_frequencies_were_cast(family: str, scheme: str, dtype: torch.dtype) -> None:
    """Their rotary modules hold frequencies in half precision, which those of the scheme are not."""
    options: dict[str, Any] = {
        "window": {"size": 12}, "yarn": {"factor": 4}, "rerope": {"trained_length": 16, "factor": 8}, "fox": {},
    }[scheme]  # fmt: skip
    in_float32, model = verdict(tiny(family, sliding_window=8), scheme, **options), tiny(family, sliding_window=8)
    assert in_float32 != "NoEffect"
    assert verdict(model.to(dtype), scheme, **options) == in_float32


@HALF
@pytest.mark.parametrize("scheme", ["fox", "alibi", "t5"])
def test_attention_that_is_computed_inline(scheme: str, dtype: torch.dtype) -> None:
    """In a forward that is the model's own, whose scores are left pending."""
    assert verdict(tiny("rembert", masked=True).to(dtype), scheme) == "moved"


def test_offloaded_weights_stay_in_half_precision() -> None:
    """Hooks that load weights for each call would keep what they load while the proof runs."""
    model = untrained().to(torch.bfloat16)
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert verdict(model, "alibi") == "moved"
    assert model(torch.ones(1, 20, dtype=torch.long)).logits.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_layer_of_two_dtypes_is_said_not_to_run() -> None:
    """In float32 it would."""
    model = untrained().to(torch.bfloat16)
    model.model.layers[0].self_attn.q_proj.float()
    with pytest.raises(UnsupportedModel, match="cannot be run as it is"):
        patch_model(model, "alibi")
