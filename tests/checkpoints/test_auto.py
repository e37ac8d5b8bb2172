"""`enable_auto`: transformers' own classes restore schemes, until `disable_auto`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, GPT2LMHeadModel, PreTrainedConfig, PreTrainedModel

from hf_posenc import describe, enable_auto, is_patched, patch_model
from hf_posenc.checkpoints.auto import disable_auto

HOOKED = {"from_pretrained": PreTrainedModel, "_from_config": PreTrainedModel, "get_config_dict": PreTrainedConfig}
TRANSFORMERS_OWN = {name: owner.__dict__[name] for name, owner in HOOKED.items()}


@pytest.fixture
def auto() -> Iterator[None]:
    enable_auto()
    yield
    disable_auto()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.usefixtures("auto")
def test_auto_classes_restore_the_scheme(kind, make_model, logits_of, perturb, tmp_path) -> None:
    model = patch_model(make_model(kind), "t5", factor=4)
    perturb(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert torch.equal(logits_of(AutoModel.from_pretrained(tmp_path)), logits_of(model.base_model))
    assert describe(loaded).proof.verdict == "moved"


@pytest.mark.usefixtures("auto")
def test_classes_and_configurations_restore_it_too(make_model, logits_of, tmp_path) -> None:
    model = patch_model(make_model("gpt2"), "alibi", factor=4)
    model.save_pretrained(tmp_path)
    loaded, info = GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert not info["unexpected_keys"]
    fresh = AutoModelForCausalLM.from_config(model.config)
    assert describe(fresh).scheme == "alibi"
    assert fresh.transformer.wpe.num_embeddings == 16  # the model's table, not one of the target length


@pytest.mark.usefixtures("auto")
def test_plain_checkpoints_load_as_before(make_model, logits_of, tmp_path) -> None:
    model = make_model("llama")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not is_patched(loaded)
    assert torch.equal(logits_of(loaded), logits_of(model))
    with pytest.raises(OSError, match="nowhere"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "nowhere", local_files_only=True)


def test_enabling_twice_and_disabling_leaves_nothing_behind(make_model, tmp_path) -> None:
    enable_auto()
    enable_auto()
    disable_auto()
    assert {name: owner.__dict__[name] for name, owner in HOOKED.items()} == TRANSFORMERS_OWN
    patch_model(make_model("llama"), "yarn", factor=4).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="hf_posenc"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
