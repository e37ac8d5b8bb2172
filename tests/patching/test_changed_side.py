"""A live model and its configuration that disagree: patching is refused, and the advice works.

The reference is a model that nobody changed, or one that transformers built from the changed configuration.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import describe, is_patched, patch_model, unpatch_model
from hf_posenc.errors import HostConfigInvalid, PosEncError, UnsupportedModel

from ..families.tiny import tiny

TRAINED = 64
LOCAL: dict[str, Any] = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED}
IDS = torch.randint(3, 96, (1, TRAINED), generator=torch.Generator().manual_seed(0))
OWN: dict[str, dict[str, Any]] = {
    "gemma3_text": LOCAL,
    "gpt2": {"n_positions": TRAINED, "n_layer": 2},
    "roberta": {"max_position_embeddings": TRAINED + 2, "pad_token_id": 1},
}
ROTATES = ["llama", "mistral", "glm"]
rotary_models = pytest.mark.parametrize("kind", ROTATES)


def made(kind: str, **own: Any) -> Any:
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": TRAINED, **OWN.get(kind, {}), **own}
    return tiny(kind, masked="bert" in kind, **sizes)


@torch.no_grad()
def logits(model: Any) -> Tensor:
    return model(IDS).logits


def set_rope(model: Any, **parameters: Any) -> None:
    model.config.rope_parameters = {**model.config.rope_parameters, **parameters}


def refused(model: Any, error: type[PosEncError], value: str, scheme: str = "yarn", **given: Any) -> None:
    with pytest.raises(error, match=value):
        patch_model(model, scheme, **{"factor": 4, **given})
    assert not is_patched(model)


@rotary_models
@pytest.mark.parametrize("length", [TRAINED // 2, 4 * TRAINED])
@pytest.mark.parametrize("replaced", [False, True], ids=["edited", "replaced"])
def test_a_length_that_the_model_was_not_built_with(kind: str, length: int, replaced: bool) -> None:
    expected, model = logits(patch_model(made(kind), "yarn", factor=4)), made(kind)
    if replaced:
        model.config = model.model.config = copy.deepcopy(model.config)
    model.config.max_position_embeddings = length
    for scheme in ("yarn", "host", "alibi"):
        refused(model, HostConfigInvalid, f"max_position_embeddings .* {length}", scheme)
    patch_model(model, "yarn", factor=4, trained_length=TRAINED)  # the advice
    assert torch.equal(logits(model), expected)
    unpatch_model(model).config.max_position_embeddings = TRAINED  # the other advice
    assert torch.equal(logits(patch_model(model, "yarn", factor=4)), expected)


EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "base": ({"rope_theta": 500.0}, "rotary_emb.inv_freq"),
    "scaled": (YARN, "'yarn'"),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, "'dynamic'"),
}


@rotary_models
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("given", [{}, {"trained_length": TRAINED}], ids=["", "trained_length"])
def test_a_rotation_that_the_model_was_not_built_with(
    kind: str, edit: str, given: dict[str, int], tmp_path: Any
) -> None:
    parameters, told = EDITS[edit]
    model = made(kind)
    model.save_pretrained(tmp_path)
    before = dict(model.config.rope_parameters)
    set_rope(model, **parameters)
    for scheme in ("yarn", "host", "host+yarn", "alibi"):
        refused(model, HostConfigInvalid, told, scheme, **given)
    loaded = type(model).from_pretrained(tmp_path, config=model.config).eval()  # the advice
    built = made(kind, rope_parameters=dict(model.config.rope_parameters))
    needed = given or ({} if edit == "base" else {"trained_length": TRAINED})
    assert torch.equal(logits(loaded), logits(built))
    found, expected = (patch_model(one, "yarn", factor=4, **needed) for one in (loaded, built))
    assert torch.equal(logits(found), logits(expected))
    model.config.rope_parameters = before  # the other advice
    assert describe(patch_model(model, "yarn", factor=4)).trained_length == TRAINED


@rotary_models
@pytest.mark.parametrize("name", ["inv_freq", "original_inv_freq"])
def test_a_buffer_that_was_written_to(kind: str, name: str) -> None:
    model = made(kind)
    getattr(model.model.rotary_emb, name).mul_(0.5)
    refused(model, HostConfigInvalid, name)
    getattr(model.model.rotary_emb, name).mul_(2.0)
    assert is_patched(patch_model(model, "yarn", factor=4))


@rotary_models
def test_a_temperature_on_either_side(kind: str) -> None:
    model = made(kind)
    model.model.rotary_emb.attention_scaling = 2.0
    refused(model, HostConfigInvalid, "attention_scaling", "host")
    model.model.rotary_emb.attention_scaling = 1.0
    torch.testing.assert_close(logits(patch_model(model, "host")), logits(made(kind)), atol=1e-5, rtol=0)
    model = made(kind, rope_parameters=dict(YARN), max_position_embeddings=4 * TRAINED)
    set_rope(model, attention_factor=2.0)
    refused(model, HostConfigInvalid, "attention_scaling", "host")


@rotary_models
def test_the_number_of_layers(kind: str) -> None:
    expected = made(kind)
    expected.model.layers, expected.config.num_hidden_layers = expected.model.layers[:1], 1
    expected = logits(patch_model(expected, "yarn", factor=4))
    for stated in (1, 4):
        model = made(kind)
        model.config.num_hidden_layers = stated
        refused(model, UnsupportedModel, f"2 attention layers .* {stated}")
    cut = made(kind)
    cut.model.layers = cut.model.layers[:1]
    refused(cut, UnsupportedModel, "1 attention layers .* 2")
    cut.config.num_hidden_layers = 1  # the advice
    assert torch.equal(logits(patch_model(cut, "yarn", factor=4)), expected)


@pytest.mark.parametrize("scheme", ["yarn", "host", "alibi"])
@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"sliding_window": 40}, "sliding_window .* 16.* 40"),
        ({"layer_types": LOCAL["layer_types"][::-1]}, "sliding_window .* 16.* None"),
        ({"layer_types": ["full_attention"] * 2}, "full_attention"),
    ],
)
def test_windows_that_attention_was_not_built_with(scheme: str, edit: dict[str, Any], told: str) -> None:
    model = made("gemma3_text")
    before = {name: getattr(model.config, name) for name in edit}
    for name, value in edit.items():
        setattr(model.config, name, value)
    refused(model, HostConfigInvalid, told, scheme)
    for name, value in before.items():
        setattr(model.config, name, value)
    assert is_patched(patch_model(model, scheme, factor=4))


@pytest.mark.parametrize("kind", ["gpt2", "bert", "roberta"])
@pytest.mark.parametrize("length", [TRAINED // 2, 4 * TRAINED])
def test_a_length_that_is_not_the_tables(kind: str, length: int) -> None:
    model = made(kind)
    before = model.config.max_position_embeddings
    model.config.max_position_embeddings = length
    told = "position_embeddings"
    for scheme in ("rope", "alibi", "host"):
        refused(model, HostConfigInvalid, told, scheme, factor=1)
    model.config.max_position_embeddings = before
    assert describe(patch_model(model, "rope", factor=4)).trained_length == TRAINED


@rotary_models
def test_what_is_no_disagreement(kind: str) -> None:
    """Another attention implementation, a second patch, a cast, a copy, and a scale of scores that a user has set."""
    expected = logits(patch_model(made(kind), "yarn", factor=4))
    model = copy.deepcopy(made(kind))
    model.set_attn_implementation("eager")
    assert torch.allclose(logits(patch_model(model, "yarn", factor=4)), expected, atol=1e-5)
    model = unpatch_model(model).to(torch.bfloat16).to(torch.float32)
    assert is_patched(patch_model(model, "yarn", factor=4))
    sharper = made(kind)
    for layer in sharper.model.layers:
        layer.self_attn.scaling *= 2
    own = logits(sharper)
    assert torch.allclose(logits(patch_model(sharper, "host")), own, atol=1e-5)
