"""Latent attention (MLA): a scaling has a temperature in its cosines and sines, and another in the scale of scores.

Every number comes from transformers' own model under the configuration that says the same.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from hf_posenc import export, patch_model
from hf_posenc.errors import NotExpressible

from .tiny import LENGTH, tiny

FAMILIES = [
    name
    for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "longcat_flash", "youtu", "axk1")
    if name in CONFIG_MAPPING
]
LIMIT = 1e-4  # frequencies are float32 there, float64 here
NOTICED = 1e-2
LONG = torch.randint(3, 96, (1, 2 * LENGTH + 1), generator=torch.Generator().manual_seed(0))
BEFORE = {"original_max_position_embeddings": LENGTH}
BOTH = {"mscale": 1.0, "mscale_all_dim": 1.0}
UNLIKE = {"mscale": 0.7, "mscale_all_dim": 1.3}
YARN = {"rope_type": "yarn", "factor": 4.0, **BEFORE}
RAMP = {"beta_fast": 16.0, "truncate": False}
SCALINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rope": ("rope", {}, {"rope_type": "default"}),
    "pi": ("pi", {}, {"rope_type": "linear", "factor": 4.0}),
    "yarn": ("yarn", {}, YARN),
    "yarn, both mscales": ("yarn", BOTH, YARN | BOTH),
    "yarn, unlike mscales": ("yarn", UNLIKE, YARN | UNLIKE),
    "yarn, attention factor": ("yarn", {"attention_factor": 1.3}, YARN | {"attention_factor": 1.3}),
    "yarn, another ramp": ("yarn", RAMP, YARN | RAMP),
    "ntk_parts": ("ntk_parts", {}, YARN | {"attention_factor": 1.0}),
    "llama3": (
        "llama3", {}, {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **BEFORE}
    ),
}  # fmt: skip
BASES = {
    "yarn": YARN,
    "both mscales": YARN | BOTH,
    "unlike mscales": YARN | UNLIKE,
    "mscale_all_dim alone": YARN | {"mscale_all_dim": 1.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "mscale_all_dim": 1.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "mscale_all_dim": 1.0},
}
STATIC = [name for name in BASES if name != "dynamic"]


def stock(family: str, parameters: dict[str, Any] | None = None) -> Any:
    """transformers' model of a family, with the same weights under any RoPE parameters."""
    if parameters is None:
        return tiny(family)
    return tiny(family, rope_parameters={"rope_theta": 10_000.0, **parameters}, max_position_embeddings=4 * LENGTH)


def plain(family: str) -> Any:
    return tiny(family, rope_parameters={"rope_theta": 10_000.0, "rope_type": "default"})


@torch.no_grad()
def logits(model: Any, ids: Tensor = LONG) -> Tensor:
    return model(ids, use_cache=False).logits


def apart(one: Any, two: Any, ids: Tensor = LONG) -> float:
    return float((logits(one, ids) - logits(two, ids)).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_model_is_scaled_as_transformers_does(family: str, scaling: str) -> None:
    scheme, options, parameters = SCALINGS[scaling]
    assert apart(patch_model(plain(family), scheme, factor=4, **options), stock(family, parameters)) < LIMIT
    if scaling != "rope":  # control
        assert apart(plain(family), stock(family, parameters)) > NOTICED


@pytest.mark.parametrize("scaling", ["rope", "pi", "yarn", "yarn, both mscales", "yarn, unlike mscales", "llama3"])
@pytest.mark.parametrize("base", BASES)
def test_a_scheme_takes_both_temperatures_of_an_older_scaling_away(base: str, scaling: str) -> None:
    scheme, options, parameters = SCALINGS[scaling]
    model = patch_model(stock("deepseek_v3", BASES[base]), scheme, factor=4, trained_length=LENGTH, **options)
    assert apart(model, stock("deepseek_v3", parameters)) < LIMIT


def test_what_stretches_further_keeps_both() -> None:
    """Against a model without either, whose softmax was scaled by hand: (0.1 · 1 · ln 4 + 1)²."""
    further = {"factor": 2, "trained_length": 4 * LENGTH}
    model = patch_model(stock("deepseek_v3", YARN | BOTH), "host+yarn", **further)
    by_hand = patch_model(stock("deepseek_v3", YARN | {"attention_factor": 1.0}), "host+yarn", **further)
    assert apart(model, by_hand) > NOTICED
    for layer in by_hand.model.layers:
        layer.self_attn.scaling *= (0.1 * math.log(4) + 1) ** 2
    assert apart(model, by_hand) < LIMIT


def test_what_a_model_scales_late_queries_by_is_kept(tmp_path: Any) -> None:
    """``llama_4_scaling_beta`` of Ministral 3 stands among its RoPE parameters, and is no part of the rotation."""
    if "ministral3" not in CONFIG_MAPPING:
        pytest.skip("this transformers has no Ministral 3")
    parameters = YARN | {"rope_theta": 10_000.0, "llama_4_scaling_beta": 0.1}
    sizes = {"rope_parameters": parameters, "max_position_embeddings": 4 * LENGTH}
    model = patch_model(tiny("ministral3", **sizes), "pi", factor=4, trained_length=LENGTH)
    assert export(model, tmp_path / "plain").written["rope_parameters"]["llama_4_scaling_beta"] == 0.1
    assert apart(AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval(), model) < LIMIT
    half = patch_model(tiny("ministral3", **sizes), "yarn", factor=4, trained_length=LENGTH // 2)
    with pytest.raises(NotExpressible, match=f"after its first {LENGTH} tokens .* counts from {LENGTH // 2}"):
        export(half, tmp_path / "half")
