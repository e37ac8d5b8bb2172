"""Limits on the length of texts inside a live model: a patch moves them to its target length, and back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from hf_posenc import describe, from_pretrained, load_starter, patch_model, set_factor, unpatch_model
from hf_posenc.errors import LimitKept

FACTOR = 4


class SentenceEncoder(nn.Module):
    """What sentence-transformers has of a model: its tokenizer, its limit, and the mean of its hidden states."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        model, self.tokenizer = load_starter("bert")
        self.model = model.bert
        trained: int = model.config.max_position_embeddings
        self.trained, self.max_seq_length = trained, trained if limit is None else limit
        self.tokenizer.model_max_length = trained

    @torch.no_grad()
    def encode(self, text: str) -> Tensor:
        cut = self.tokenizer(text, truncation=True, max_length=self.max_seq_length, return_tensors="pt")
        return self.model(**cut).last_hidden_state.mean(1)


def limits(model: Any) -> tuple[int, int]:
    return model.tokenizer.model_max_length, model.max_seq_length


def test_two_documents_that_differ_at_their_ends_get_two_vectors() -> None:
    model = SentenceEncoder()
    one, other = (f"{'the value of this list is not used here . ' * 40}{end}" for end in ("a string", "the class"))
    assert model.trained < len(model.tokenizer(one).input_ids) < FACTOR * model.trained
    assert torch.equal(model.encode(one), model.encode(other)), "control: cut at the trained length, they are one"
    patch_model(model, "learned_interp", factor=FACTOR)
    assert limits(model) == (FACTOR * model.trained,) * 2
    assert (model.encode(one) - model.encode(other)).abs().max() > 1e-3
    set_factor(model, 2)
    assert limits(model) == (2 * model.trained,) * 2
    unpatch_model(model)
    assert limits(model) == (model.trained,) * 2


def test_a_limit_that_was_chosen_is_kept_and_said() -> None:
    model = SentenceEncoder(limit=128)
    with pytest.warns(LimitKept, match=r"max_seq_length of this SentenceEncoder is 128, .* Set it to 1,024"):
        patch_model(model, "learned_interp", factor=FACTOR)
    assert limits(model) == (FACTOR * model.trained, 128)
    model.tokenizer.model_max_length = 500  # the caller's own, after the patch
    unpatch_model(model)
    assert limits(model) == (500, 128)


@pytest.mark.parametrize(("before", "after"), [(256, 1024), (300, 1024), (255, 255), (2048, 2048), (None, None)])
def test_generation(before: int | None, after: int | None) -> None:
    model, _ = load_starter("llama")
    trained = model.config.max_position_embeddings
    assert trained == 256
    model.generation_config.max_length = before
    patch_model(model, "yarn", factor=FACTOR)
    assert model.generation_config.max_length == after
    assert "model_max_length: set that to 1024 or more" in str(describe(model))
    twin = unpatch_model(copy.deepcopy(model))
    assert (twin.generation_config.max_length, model.generation_config.max_length) == (before, after)


@pytest.mark.parametrize("written", [256, 1024])
def test_generation_of_a_checkpoint(written: int, tmp_path: Path) -> None:
    """Also of one that an earlier version has written, which kept the trained length."""
    model, _ = load_starter("llama")
    model.generation_config.max_length = 256
    patch_model(model, "yarn", factor=FACTOR).save_pretrained(tmp_path)
    assert '"max_length": 1024' in (tmp_path / "generation_config.json").read_text()
    (tmp_path / "generation_config.json").write_text(f'{{"max_length": {written}}}')
    again = from_pretrained(tmp_path)
    assert again.generation_config.max_length == 1024
    assert set_factor(again, 2).generation_config.max_length == 512
    assert unpatch_model(again).generation_config.max_length == 256


def test_an_encoder_decoder_has_one_generation_configuration() -> None:
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.generation_config.max_length = 512
    patch_model(model, "t5", factor=FACTOR, trained_length=512)
    assert model.generation_config.max_length == FACTOR * 512
    set_factor(model, 2)
    assert model.generation_config.max_length == 1024
    unpatch_model(model)
    assert model.generation_config.max_length == 512
