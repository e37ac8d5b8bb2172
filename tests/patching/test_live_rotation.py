"""A cast, or a scaling that follows the length, is no change of a live model's frequencies; stretches and warnings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from hf_posenc import describe, patch_model
from hf_posenc.errors import AlreadyScaled, NothingStretched

SIZES: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64},
}
MODELS = {
    "own adapter": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)).eval(),
    "general adapter": lambda: MistralForCausalLM(MistralConfig(**SIZES)).eval(),
}
models = pytest.mark.parametrize("model", MODELS)


@models
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_cast_is_no_change(model: str, dtype: torch.dtype) -> None:
    built = MODELS[model]().to(dtype)
    assert built.model.rotary_emb.inv_freq.dtype is dtype
    for model_now in (built, MODELS[model]().to(dtype).float()):
        assert describe(patch_model(model_now, "alibi")).scheme == "alibi"


def test_frequencies_that_follow_the_length_are_no_change() -> None:
    """transformers keeps those of the longest text that it has read."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    built = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)).eval()
    before = built.model.rotary_emb.inv_freq.clone()
    built(torch.ones(1, 100, dtype=torch.long))
    assert not torch.equal(built.model.rotary_emb.inv_freq, before)
    assert describe(patch_model(built, "alibi")).proof.verdict == "moved"


@models
def test_a_longer_text_that_was_read_before_shows_in_no_patch(model: str) -> None:
    """The advice on such a model, whose frequencies are still those of the longer text."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    cls, config = {
        "own adapter": (LlamaForCausalLM, LlamaConfig),
        "general adapter": (MistralForCausalLM, MistralConfig),
    }[model]
    built = cls(config(**SIZES, rope_parameters=rope)).eval()
    built(torch.ones(1, 100, dtype=torch.long))
    with pytest.raises(AlreadyScaled, match=r'such as "dynamic_ntk", with trained_length='):
        patch_model(built, "host")
    assert describe(patch_model(built, "dynamic_ntk", trained_length=64)).proof.verdict == "identity"  # up to 64


@models
def test_a_stretch_without_a_factor_warns(model: str) -> None:
    with pytest.warns(NothingStretched, match=r"yarn was given no factor, .* stays 64 tokens\. Pass factor"):
        patch_model(MODELS[model](), "yarn")


@models
@pytest.mark.parametrize(("scheme", "given"), [("yarn", {"factor": 1}), ("rope", {}), ("dynamic_yarn", {}), ("t5", {})])
@pytest.mark.filterwarnings("error::hf_posenc.errors.NothingStretched")
def test_others_do_not_warn(model: str, scheme: str, given: dict[str, Any]) -> None:
    """A factor of one was asked for, these bring positions of their own, or follow the length by themselves."""
    assert describe(patch_model(MODELS[model](), scheme, **given)).scheme == scheme
