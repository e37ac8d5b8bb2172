"""A patched model is saved and loaded: same scheme, same numbers, whatever the head, the shards and the dtype."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, GPT2ForSequenceClassification, LlamaModel, PreTrainedModel

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.errors import CheckpointMismatch

from ..families.tiny import tiny
from ..small_models import edit_weights

FACTOR, TRAINED = 4, 16
PAIRS = [("llama", "rerope"), ("gpt2", "t5"), ("bert", "alibi")]


@pytest.mark.parametrize(("kind", "scheme"), PAIRS)
def test_load_gives_what_was_saved(kind, scheme, make_model, logits_of, perturb, tmp_path) -> None:
    model = patch_model(make_model(kind), scheme, factor=FACTOR)
    perturb(model)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert loaded.config.max_position_embeddings == FACTOR * TRAINED
    after, before = describe(loaded), describe(model)
    assert after.proof.verdict == before.proof.verdict == "moved"  # not left at "deferred"
    for name in ("scheme", "touched", "parameters_added"):
        assert getattr(after, name) == getattr(before, name)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_unpatching_a_loaded_model_gives_the_base_model(kind, make_model, logits_of, tmp_path) -> None:
    plain = make_model(kind)
    want = logits_of(plain, TRAINED)
    patch_model(plain, "t5", factor=FACTOR).save_pretrained(tmp_path)
    loaded = unpatch_model(from_pretrained(tmp_path))
    assert torch.equal(logits_of(loaded, TRAINED), want)
    assert loaded.config.max_position_embeddings == TRAINED
    assert not hasattr(loaded.config, "position_scheme")
    assert all(p.requires_grad for p in loaded.parameters())


def test_parameters_are_in_the_weights_and_the_scheme_in_the_configuration(make_model, tmp_path) -> None:
    patch_model(make_model("llama"), "t5", factor=FACTOR, num_buckets=16).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "model.posenc.table.weight" in file.keys()  # noqa: SIM118 (a safetensors file is no dict)
    block = json.loads((tmp_path / "config.json").read_text())["position_scheme"]
    assert block["scheme"] == [{"name": "t5", "options": {"num_buckets": 16}}]
    lengths = block["trained_length"], block["target_length"], block["host_length"]
    assert lengths == (TRAINED, FACTOR * TRAINED, TRAINED)


@pytest.mark.parametrize(
    ("kind", "scheme", "model_class"),
    [
        ("llama", "t5", LlamaModel),
        ("gpt2", "t5", GPT2ForSequenceClassification),
        ("bert", "alibi", AutoModelForSequenceClassification),
    ],
)
def test_other_heads(kind, scheme, model_class, make_model, logits_of, perturb, tmp_path) -> None:
    """Another head over the same base: its hidden states are the saved model's."""
    model = patch_model(make_model(kind), scheme, factor=FACTOR)
    perturb(model)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path, model_class=model_class, num_labels=3, pad_token_id=0)
    base = getattr(loaded, loaded.base_model_prefix, loaded)
    assert torch.equal(logits_of(base), logits_of(model.base_model))
    assert describe(loaded).scheme == scheme


def test_missing_parameters_are_initialised_by_the_scheme(make_model, tmp_path) -> None:
    """Transformers would draw an embedding of width 32 from N(0, 0.3); T5's rule is N(0, 1 / 32)."""
    patch_model(make_model("llama"), "t5", factor=FACTOR, num_buckets=512, max_distance=1024).save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda weights: weights.pop("model.posenc.table.weight"))
    loaded = from_pretrained(tmp_path)
    assert loaded.model.posenc.table.weight.std().item() == pytest.approx(32**-0.5, rel=0.1)


def gemma3() -> PreTrainedModel:
    local = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    return tiny("gemma3_text", num_hidden_layers=2, max_position_embeddings=32, **local)


def test_all_layers_as_patch_model_takes_them(tmp_path) -> None:
    gemma3().save_pretrained(tmp_path / "plain")
    asked = {"scheme": "yarn", "target_length": 128, "layers": "all"}
    loaded = from_pretrained(tmp_path / "plain", **asked)
    assert describe(loaded).target_length == 128
    assert describe(patch_model(gemma3(), **asked)).kinds == describe(loaded).kinds
    loaded.save_pretrained(tmp_path / "all")
    patch_model(gemma3(), "yarn", target_length=128).save_pretrained(tmp_path / "far alone")
    assert describe(from_pretrained(tmp_path / "all", **asked)).target_length == 128
    with pytest.raises(CheckpointMismatch, match="in all layers"):
        from_pretrained(tmp_path / "far alone", **asked)
    with pytest.raises(CheckpointMismatch, match="target_length 64 was asked for"):
        from_pretrained(tmp_path / "all", target_length=64)
