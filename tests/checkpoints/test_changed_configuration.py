"""Changes that a caller makes in the configuration of a patched model survive, unless they decide positions."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from hf_posenc import patch_model, unpatch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

TEXT = torch.randint(3, 90, (1, TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_resized_vocabulary_is_saved_and_loaded_after_the_patch(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    rows = model.config.vocab_size
    patch_model(model, "alibi", factor=4)
    model.resize_token_embeddings(rows + 7)
    unpatch_model(model)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        logits = model(TEXT).logits
        loaded = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(TEXT).logits, logits)
        assert torch.allclose(logits[..., :rows], tiny_model(name)(TEXT).logits, atol=1e-6)
    assert loaded.config.vocab_size == rows + 7


def test_a_model_that_shares_the_configuration_sees_no_change() -> None:
    model = tiny_model("llama")
    shared = model.config
    before = copy.deepcopy(shared.to_dict())
    patch_model(model, "yarn", factor=4)
    model.config.use_cache = not model.config.use_cache
    unpatch_model(model)
    assert model.config.use_cache != shared.use_cache
    assert model.model.config is model.config
    assert shared.to_dict() == before
    assert model.config.max_position_embeddings == TRAINED_LENGTH


def test_without_a_change_and_after_one_of_positions_it_is_the_old_object() -> None:
    for name, value in (("rms_norm_eps", None), ("num_attention_heads", 2), ("max_position_embeddings", 7)):
        model = tiny_model("llama")
        before = model.config
        patch_model(model, "yarn", factor=4)
        setattr(model.config, name, value or getattr(model.config, name))
        unpatch_model(model)
        assert model.config is before
