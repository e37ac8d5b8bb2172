"""One PEFT configuration wraps several models, as in a loop over schemes: each saves its own scheme, or none."""

from __future__ import annotations

import json

import pytest

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.patching.peft_sidecar import SIDECAR

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")


@pytest.mark.parametrize("schemes", [("alibi", None, "yarn"), (None, "yarn")])
def test_each_model_saves_its_own_scheme(schemes, make_model, logits_of, tmp_path) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    make_model("llama").save_pretrained(tmp_path / "base")
    models = {}
    for scheme in schemes:
        model = make_model("llama")
        models[scheme] = peft.get_peft_model(model if scheme is None else patch_model(model, scheme, factor=2), config)
    for scheme, model in models.items():
        model.save_pretrained(tmp_path / str(scheme))
        again = from_pretrained(tmp_path / "base", peft_adapter=tmp_path / str(scheme))
        assert scheme is None or describe(again).scheme == scheme
        assert (logits_of(again) - logits_of(model)).abs().max() < 1e-6  # the same float32 operations
    assert not (tmp_path / "None" / SIDECAR).exists()
    assert json.loads((tmp_path / "None" / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert type(config) is peft.LoraConfig, "the caller's own object is left alone"
