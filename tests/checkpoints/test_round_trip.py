"""A patched model is saved and loaded: same scheme, same numbers, whatever the head, shards, dtype or changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, GPT2ForSequenceClassification, LlamaModel, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import CannotCombine, CheckpointMismatch, OptionOutOfRange

from ..families.tiny import tiny

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


IDLE = {
    "none": ("llama", "rope", {}, "none", {}),
    "a recipe": ("llama", "none", {}, "pose", {}),
    "a code": ("gpt2", "sinusoidal", {}, "learned_interp", {}),
    "an option": ("llama", "fire", {"1": "kerple"}, None, {"share_layers": True}),
}


@pytest.mark.parametrize(("kind", "scheme", "layers", "part", "options"), IDLE.values(), ids=IDLE)
def test_what_has_no_effect_loads_as_saved(
    kind, scheme, layers, part, options, make_model, logits_of, perturb, tmp_path
) -> None:
    """Earlier versions took and saved it; control: a new patch refuses it."""
    model = patch_model(make_model(kind), scheme, factor=FACTOR, layers=layers)
    perturb(model)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    parts = content["position_scheme"]["scheme"]
    parts[0]["options"] |= options
    parts += [{"name": part, "options": {}}] if part else []
    file.write_text(json.dumps(content))
    idle = f"{scheme}+{part}" if part else scheme
    with pytest.raises((CannotCombine, OptionOutOfRange)):
        patch_model(make_model(kind), idle, factor=FACTOR, layers=layers, **options)
    loaded = from_pretrained(tmp_path)
    assert describe(loaded).scheme.startswith(idle)
    assert torch.equal(logits_of(loaded), logits_of(model))


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
    assert describe(from_pretrained(tmp_path / "all")).kinds == describe(loaded).kinds
    for given in asked:
        with pytest.raises(CheckpointMismatch, match=f"{given} .*was asked for"):
            from_pretrained(tmp_path / "all", **{given: asked[given]})


SCALED: list[dict[str, object]] = [
    {"rope_type": "linear"},
    {"rope_type": "yarn"},
    {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
]


@pytest.mark.parametrize("scaling", SCALED, ids=lambda scaling: scaling["rope_type"])
@pytest.mark.parametrize("scheme", ["alibi", "host+self_extend"])
def test_a_model_that_is_scaled_already(scheme: str, scaling, logits_of, tmp_path) -> None:
    """Its frequencies are computed by transformers, while the model is built on the meta device."""
    if scaling["rope_type"] not in ROPE_INIT_FUNCTIONS:
        pytest.skip("this transformers does not have the RoPE type")
    counted = {"original_max_position_embeddings": TRAINED} if scaling["rope_type"] in ("yarn", "llama3") else {}
    parameters = {"rope_theta": 1e4, "factor": 2.0, **scaling, **counted}
    model = patch_model(tiny("llama", max_position_embeddings=2 * TRAINED, rope_parameters=parameters), scheme)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(from_pretrained(tmp_path)), logits_of(model))


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
