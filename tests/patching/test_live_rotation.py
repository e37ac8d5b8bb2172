"""A cast, or a scaling that follows the length, is no change of a live model's frequencies; stretches and warnings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc import describe, patch_model
from hf_posenc.errors import AlreadyScaled, NothingStretched

from ..families.tiny import tiny

SIZES = {"num_hidden_layers": 2, "max_position_embeddings": 64}
MODELS = {"own adapter": "llama", "general adapter": "mistral"}
models = pytest.mark.parametrize("model", MODELS)


@models
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cast_is_no_change(model: str, dtype: torch.dtype) -> None:
    for built in (tiny(MODELS[model], **SIZES).to(dtype), tiny(MODELS[model], **SIZES).to(dtype).float()):
        assert describe(patch_model(built, "alibi")).scheme == "alibi"


@models
def test_a_longer_text_that_was_read_before_shows_in_no_patch(model: str) -> None:
    """The advice on such a model, whose frequencies are still those of the longer text."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    built = tiny(MODELS[model], **SIZES, rope_parameters=rope)
    built(torch.ones(1, 100, dtype=torch.long))
    with pytest.raises(AlreadyScaled, match=r'such as "dynamic_ntk", with trained_length='):
        patch_model(built, "host")
    assert describe(patch_model(built, "dynamic_ntk", trained_length=64)).proof.verdict == "identity"  # up to 64


@models
def test_a_stretch_without_a_factor_warns(model: str) -> None:
    with pytest.warns(NothingStretched, match=r"yarn was given no factor, .* stays 64 tokens\. Pass factor"):
        patch_model(tiny(MODELS[model], **SIZES), "yarn")


@models
@pytest.mark.parametrize(("scheme", "given"), [("yarn", {"factor": 1}), ("rope", {}), ("dynamic_yarn", {}), ("t5", {})])
@pytest.mark.filterwarnings("error::hf_posenc.errors.NothingStretched")
def test_others_do_not_warn(model: str, scheme: str, given: dict[str, Any]) -> None:
    """A factor of one was asked for, these bring positions of their own, or follow the length by themselves."""
    assert describe(patch_model(tiny(MODELS[model], **SIZES), scheme, **given)).scheme == scheme
