"""Checkpoints that were edited, lack a part of their scheme, or are requested under another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import CheckpointMismatch, PosEncError
from hf_posenc.patching.scheme_config import SchemeConfig

from ..families.tiny import tiny
from ..small_models import TRAINED, edit, edit_weights
from .conftest import FACTOR


@pytest.fixture
def saved(make_model, tmp_path) -> Callable[..., Path]:
    """A folder with a patched model."""

    def save(kind: str = "llama", scheme: Any = "yarn", **options: Any) -> Path:
        patch_model(make_model(kind), scheme, **{"factor": FACTOR, **options}).save_pretrained(tmp_path)
        return tmp_path

    return save


@pytest.mark.parametrize(
    "lengths",
    [
        {"trained_length": 12, "target_length": 64}, {"trained_length": 8, "factor": 8},
        {"trained_length": 32, "factor": 2}, {"target_length": 50, "factor": None},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["yarn", "dynamic_ntk"])
def test_lengths_are_those_that_were_given(
    scheme: str, lengths: dict[str, Any], make_model, logits_of, tmp_path
) -> None:
    """A trained length that was given is not the model's ``max_position_embeddings``."""
    options = {"factor": None, **lengths}
    model = patch_model(make_model("llama"), scheme, **options)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    after, before = describe(loaded), describe(model)
    assert (after.trained_length, after.target_length) == (before.trained_length, before.target_length)
    length = before.target_length
    assert torch.equal(logits_of(loaded, length), logits_of(model, length))
    other = logits_of(patch_model(make_model("llama"), scheme, target_length=length), length)
    if before.trained_length != TRAINED:
        assert not torch.equal(other, logits_of(model, length))  # control


def test_a_keyword_does_not_change_the_rotation_that_the_scheme_was_chosen_for(saved) -> None:
    with pytest.raises(CheckpointMismatch, match=r"rope_theta 10000.* now says 500000"):
        from_pretrained(saved(), rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})


def test_a_weight_of_another_shape(saved) -> None:
    folder = saved()
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(PosEncError, match=r"model\.norm\.weight"):
        from_pretrained(folder, ignore_mismatched_sizes=True)


def test_a_checkpoint_without_a_part_of_its_scheme(saved) -> None:
    folder = saved(scheme=[("alibi", {"slopes": "learned"}), ("t5", {})])
    edit_weights(folder, lambda weights: weights.pop(next(name for name in weights if "log_slopes" in name)))
    with pytest.raises(CheckpointMismatch, match="log_slopes"):
        from_pretrained(folder)


def test_layers_are_counted_where_the_model_is(tmp_path: Path) -> None:
    """In a subfolder, and not in the folder above."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": 1})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "small")
    assert len(from_pretrained(tmp_path, subfolder="small").model.layers) == 1
    (tmp_path / "config.json").write_bytes((tmp_path / "small" / "config.json").read_bytes())
    with pytest.raises(CheckpointMismatch, match="of 2 layers"):
        from_pretrained(tmp_path)
    assert len(from_pretrained(tmp_path, config=config).model.layers) == 1, "what the error says to do"


GOOD: dict[str, Any] = {
    "format": 1,
    "scheme": [{"name": "yarn", "options": {"beta_fast": 16.0}}, {"name": "logn", "options": {}}],
    "layers": {"1": [{"name": "pi", "options": {}}]},
    "trained_length": 16,
    "target_length": 64,
    "host_length": 16,
}


def test_a_valid_scheme_config_is_read_and_written_unchanged() -> None:
    assert SchemeConfig.read(GOOD, "here").to_json() == GOOD


def test_scheme_configs_that_do_not_fit_the_model(make_model, tmp_path) -> None:
    """Well-formed, but for another model: a scheme that needs a rotation, a layer that is not there."""
    patch_model(make_model("bert"), "alibi", factor=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in (
        {"scheme": [{"name": "rerope", "options": {}}]},
        {"layers": {"7": [{"name": "alibi", "options": {}}]}},
    ):
        edit(tmp_path, position_scheme={**config["position_scheme"], **change})
        with pytest.raises(CheckpointMismatch, match="does not fit its BertForMaskedLM"):
            from_pretrained(tmp_path)


def test_layers_that_a_family_leaves_out_on_purpose(tmp_path: Path) -> None:
    """GLM 4's layer for predicting further tokens stands behind those that its configuration counts."""
    model = tiny("glm4_moe", num_hidden_layers=46, first_k_dense_replace=46, max_position_embeddings=TRAINED)
    model.save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda weights: weights.update({"model.layers.46.eh_proj.weight": torch.ones(4, 4)}))
    assert len(from_pretrained(tmp_path).model.layers) == 46
