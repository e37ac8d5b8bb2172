"""The report of a patch shows layers by kind, and where others carry order; loading keeps configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_posenc import describe, from_pretrained, patch_model
from hf_posenc.forward.attention import PatchedAttention

from .tiny import tiny


def test_layers_by_kind() -> None:
    report = describe(patch_model(tiny("gpt_oss"), "host+yarn", factor=4))
    assert list(report.kinds.values()) == [2, 2]
    assert [kind.rpartition(": ")[2] for kind in report.kinds] == ["host", "host+yarn"]
    assert "2 × RoPE θ 150,000, window 128: host; 2 × RoPE θ 150,000: host+yarn" in str(report)
    assert report.to_dict()["kinds"] == report.kinds
    assert describe(patch_model(tiny("qwen3"), "yarn", factor=4)).kinds == {}


def test_layers_without_attention_carry_order() -> None:
    report = describe(patch_model(tiny("qwen3_next"), "yarn", factor=4))
    assert report.mixes_otherwise
    assert "carried by layers without attention" in str(report)
    assert not describe(patch_model(tiny("qwen3"), "yarn", factor=4)).mixes_otherwise


def test_a_loaded_models_layers_keep_its_configuration(tmp_path: Path) -> None:
    patch_model(tiny("qwen3"), "yarn", factor=4).save_pretrained(tmp_path)
    loaded: Any = from_pretrained(tmp_path)
    layers = [vars(module)["config"] for module in loaded.modules() if isinstance(module, PatchedAttention)]
    assert len(layers) == 4
    assert all(config is loaded.config for config in layers)
