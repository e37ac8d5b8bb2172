"""Models that their configuration scales already, or that changed since: lengths of a patch, stretches, warnings."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from hf_posenc import describe, errors, patch_model, unpatch_model
from hf_posenc.errors import AlreadyScaled, NothingStretched
from hf_posenc.insight.advise import advise
from hf_posenc.patching.state import scheme_of

from ..families.tiny import tiny

BEFORE, REACH = 64, 512
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "max_position_embeddings": REACH}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": BEFORE,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": BEFORE}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
GEMMA3 = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
LOCAL = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "yarn": ("qwen3", {"rope_parameters": YARN}),
    "gpt-oss": ("gpt_oss", {**LOCAL, "rope_parameters": YARN}),
    "gemma3": ("gemma3_text", {**LOCAL, "rope_parameters": GEMMA3}),
    "longrope": ("phi3", {"original_max_position_embeddings": BEFORE, "rope_parameters": LONGROPE}),
}


def model_of(kind: str) -> Any:
    family, own = MODELS[kind]
    return tiny(family, **SIZES, **copy.deepcopy(own))


KEPT = ["dca", "rerope", "self_extend", "string", "lm_infinite", "host", "logn", "sinks", "window", "host+yarn"]
STRETCHED = ["pi", "ntk", "ntk_parts", "ntk_parts_v1", "yarn", "llama3", "longrope", "dynamic_ntk"]


@pytest.mark.parametrize("scheme", KEPT)
@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_schemes_that_keep_the_rotation_count_from_what_the_model_reaches(kind: str, scheme: str) -> None:
    report = describe(patch_model(model_of(kind), scheme, factor=2))
    assert (report.trained_length, report.target_length) == (REACH, 2 * REACH)


@pytest.mark.parametrize("kind", ["llama3", "yarn", "gpt-oss", "gemma3", "longrope"])
@pytest.mark.parametrize("scheme", ["yarn", "ntk", "rope", "yarn+logn", "dynamic_ntk"])
def test_schemes_that_replace_the_rotation_need_the_trained_length(kind: str, scheme: str) -> None:
    model = model_of(kind)
    with pytest.raises(errors.AlreadyScaled, match="trained_length="):
        patch_model(model, scheme, factor=2)
    report = describe(patch_model(model, scheme, factor=2, trained_length=BEFORE))
    assert (report.trained_length, report.target_length) == (BEFORE, 2 * BEFORE)


@pytest.mark.parametrize("scheme", [*STRETCHED, "dynamic_yarn", "yarn+logn"])
def test_the_way_out_that_is_named_is_one(scheme: str) -> None:
    with pytest.raises(errors.AlreadyScaled) as refused:
        patch_model(model_of("llama3"), scheme, factor=2)
    assert f'scheme="host+{scheme}"' in str(refused.value)
    patch_model(model_of("llama3"), f"host+{scheme}", factor=2)


def test_nothing_is_stretched_that_changes_with_the_length() -> None:
    with pytest.raises(errors.AlreadyScaled, match="change with the length"):
        patch_model(model_of("longrope"), "host+yarn", factor=2)


@pytest.mark.parametrize("scheme", STRETCHED)
def test_on_a_model_without_scaling_host_adds_nothing(scheme: str) -> None:
    model, ids = model_of("llama"), torch.arange(90)[None] % 97
    found = []
    for name in (scheme, f"host+{scheme}", f"{scheme}+host"):
        patch_model(model, name, factor=4, trained_length=BEFORE)
        with torch.no_grad():
            found.append(model(ids).logits)
        unpatch_model(model)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def yarn_on(frequencies: np.ndarray, trained: int, factor: float) -> tuple[np.ndarray, float]:
    """YaRN in float64 on any frequencies: γ is linear in the pair index between the pairs of 32 and 1 rotations.

    Between pairs, the logarithm of the frequency is linear in the index; the same line goes on at both ends.
    """
    logs, index = np.log(frequencies), np.arange(len(frequencies))
    slope = np.diff(logs)[[0, -1]]
    longer = np.r_[logs[0] - slope[0] * 1000, logs, logs[-1] + slope[1] * 1000]
    places = np.r_[-1000, index, len(index) + 999]
    fast, slow = (np.interp(-math.log(2 * math.pi * r / trained), -longer, places) for r in (32.0, 1.0))
    first, last = max(math.floor(fast), 0), min(math.ceil(slow), 2 * len(index) - 1)
    slowed = np.clip((index - first) / max(last - first, 0.001), 0, 1)
    return (1 - slowed) * frequencies + slowed * frequencies / factor, 0.1 * math.log(factor) + 1


def llama3_frequencies(base: float, dims: int) -> np.ndarray:
    plain = base ** (-2 * np.arange(dims // 2) / dims)
    kept = np.clip((BEFORE * plain / (2 * math.pi) - 1) / 3, 0, 1)
    return (1 - kept) * plain / 8 + kept * plain


def test_yarn_on_llama3s_frequencies_is_the_formula_in_the_stock_class() -> None:
    """A stock Llama whose buffers are set to the formula's frequencies has the logits of ``host+yarn``."""
    model, stock, ids = model_of("llama3"), model_of("llama3"), torch.arange(3, 900)[None] % 97
    frequencies, temperature = yarn_on(llama3_frequencies(10_000.0, 16), REACH, 2.0)
    untouched = stock(ids).logits
    stock.model.rotary_emb.inv_freq = torch.tensor(frequencies, dtype=torch.float32)
    stock.model.rotary_emb.attention_scaling = temperature
    patch_model(model, "host+yarn", factor=2)
    with torch.no_grad():
        expected, found = stock(ids).logits, model(ids).logits
    assert (found - expected).abs().max() < 1e-5
    assert (found - untouched).abs().max() > 1e-3  # the control: without YaRN they differ


def test_temperatures_multiply() -> None:
    parts = scheme_of(patch_model(model_of("yarn"), "host+yarn", factor=2)).schemes
    expected = (0.1 * math.log(8) + 1) ** 2 * (0.1 * math.log(2) + 1) ** 2
    assert math.prod(part.logit_scale() for part in parts) == pytest.approx(expected)


def test_a_base_would_replace_what_is_stretched() -> None:
    with pytest.raises(errors.OptionOutOfRange, match="Leave base out"):
        patch_model(model_of("llama3"), "host+yarn", factor=2, base=5e5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama3", "yarn", "gpt-oss", "gemma3", "longrope"])
def test_advice_patches_as_it_says(kind: str) -> None:
    """What `advise` recommends gives, in `patch_model`, the trained length and factor that it counted with."""
    model = model_of(kind)
    advice = advise(model, 2 * REACH)
    assert advice.reach == REACH
    assert bool(advice.zero_shot) == (kind != "longrope")
    for one in advice.recommendations:
        patch_model(model, one.scheme, **one.lengths, **one.options)
        report = describe(model)
        assert (report.trained_length, report.target_length) == (one.trained, 2 * REACH)
        unpatch_model(model)


FRESH = {"num_hidden_layers": 2, "max_position_embeddings": 64}
ADAPTERS = {"own adapter": "llama", "general adapter": "mistral"}
models = pytest.mark.parametrize("model", ADAPTERS)


@models
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cast_is_no_change(model: str, dtype: torch.dtype) -> None:
    for built in (tiny(ADAPTERS[model], **FRESH).to(dtype), tiny(ADAPTERS[model], **FRESH).to(dtype).float()):
        assert describe(patch_model(built, "alibi")).scheme == "alibi"


@models
def test_a_longer_text_that_was_read_before_shows_in_no_patch(model: str) -> None:
    """The advice on such a model, whose frequencies are still those of the longer text."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    built = tiny(ADAPTERS[model], **FRESH, rope_parameters=rope)
    built(torch.ones(1, 100, dtype=torch.long))
    with pytest.raises(AlreadyScaled, match=r'such as "dynamic_ntk", with trained_length='):
        patch_model(built, "host")
    assert describe(patch_model(built, "dynamic_ntk", trained_length=64)).proof.verdict == "identity"  # up to 64


@models
def test_a_stretch_without_a_factor_warns(model: str) -> None:
    with pytest.warns(NothingStretched, match=r"yarn was given no factor, .* stays 64 tokens\. Pass factor"):
        patch_model(tiny(ADAPTERS[model], **FRESH), "yarn")


@models
@pytest.mark.parametrize(("scheme", "given"), [("yarn", {"factor": 1}), ("rope", {}), ("dynamic_yarn", {}), ("t5", {})])
@pytest.mark.filterwarnings("error::hf_posenc.errors.NothingStretched")
def test_others_do_not_warn(model: str, scheme: str, given: dict[str, Any]) -> None:
    """A factor of one was asked for, these bring positions of their own, or follow the length by themselves."""
    assert describe(patch_model(tiny(ADAPTERS[model], **FRESH), scheme, **given)).scheme == scheme
