"""One PEFT configuration wraps several models, as in a loop over schemes: each saves its own scheme, or none."""

from __future__ import annotations

import json

import pytest
from packaging.version import Version
from transformers.integrations.peft import MIN_PEFT_VERSION

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.patching.peft_sidecar import SIDECAR

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")


@pytest.fixture
def config():
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def wrapped_by_peft(model, config):
    return peft.get_peft_model(model, config)


def with_adapter_of_transformers(model, config):
    if Version(peft.__version__) < Version(MIN_PEFT_VERSION):
        pytest.skip(f"adapters of this transformers need PEFT {MIN_PEFT_VERSION}")
    model.add_adapter(config)
    return model


@pytest.mark.parametrize("wrap", [wrapped_by_peft, with_adapter_of_transformers])
@pytest.mark.parametrize("first", ["alibi", None])
def test_a_baseline_beside_a_patched_model_is_saved_without_a_scheme(make_model, config, wrap, first, tmp_path):
    models = {
        scheme: wrap(
            make_model("llama") if scheme is None else patch_model(make_model("llama"), scheme, factor=2), config
        )
        for scheme in (first, "alibi" if first is None else None)
    }
    for scheme, model in models.items():
        model.save_pretrained(tmp_path / str(scheme))

    assert not (tmp_path / "None" / SIDECAR).exists()
    assert json.loads((tmp_path / "None" / "adapter_config.json").read_text())["peft_type"] == "LORA"
    scheme = json.loads((tmp_path / "alibi" / SIDECAR).read_text())["scheme"]
    assert [part["name"] for part in scheme] == ["alibi"]
    assert type(config) is peft.LoraConfig, "the caller's own object is left alone"


def test_each_of_two_patched_models_saves_its_own_scheme(make_model, config, logits_of, tmp_path):
    base = make_model("llama")
    base.save_pretrained(tmp_path / "base")
    models = {s: peft.get_peft_model(patch_model(make_model("llama"), s, factor=2), config) for s in ("alibi", "yarn")}
    for scheme, model in models.items():
        model.save_pretrained(tmp_path / scheme)
    for scheme, model in models.items():
        again = from_pretrained(tmp_path / "base", peft_adapter=tmp_path / scheme)
        assert describe(again).scheme == scheme
        assert (logits_of(again) - logits_of(model)).abs().max() < 1e-6  # the same float32 operations
