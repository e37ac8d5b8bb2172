"""The proof of effect refuses patches without effect or with a wrong one, and raises no false alarm.

Each is tried on a small model and on one of a real model's length: at position 10⁵ the model's own float32 angles are
off by hundredths of a radian, which must neither pass for an effect nor be taken for a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc import describe, is_patched, patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import NoEffect
from hf_posenc.forward import call_plan
from hf_posenc.schemes.rotary.ntk import NTK
from hf_posenc.schemes.rotary.rotary import RoPE

LONG = 131_072


def small(dtype: torch.dtype = torch.float32) -> Any:
    return tiny_model("llama").to(dtype)


def long(dtype: torch.dtype = torch.float32) -> Any:
    """As it is initialised, but with attention that is not quite even."""
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, intermediate_size=64,
        vocab_size=97, max_position_embeddings=LONG, rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 5
    return model.to(dtype).eval()  # which rounds the model's frequencies as well


HOSTS: dict[str, Callable[..., Any]] = {"small": small, "long": long}


@pytest.fixture(params=HOSTS)
def model(request: pytest.FixtureRequest) -> Any:
    return HOSTS[request.param]()


def refused(model: Any, scheme: str, words: str, **options: Any) -> None:
    with pytest.raises(NoEffect, match=words):
        patch_model(model, scheme, **options)
    assert not is_patched(model)


def other_rotation(cls: type[RoPE]) -> Callable[..., Any]:
    """`region_rotations` as under another scheme, whatever the model's own is."""
    plain = call_plan.region_rotations
    return lambda scheme, ctx, **stored: plain(cls(scheme.geometry), ctx, **stored)


@pytest.mark.parametrize("scheme", ["pi", "ntk", "ntk_parts", "llama3"])
def test_a_rotation_that_nobody_applies(model: Any, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_plan, "region_rotations", other_rotation(RoPE))
    refused(model, scheme, "nothing moved", factor=4)


def test_the_hosts_own_rotation_done_otherwise(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_plan, "region_rotations", other_rotation(NTK))
    refused(model, "rope", "it equals the model's own", factor=4)


def test_positions_a_tenth_off(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them by as much would be a shift, to which a rotation is blind: every second one."""
    plain = call_plan.context_of

    def off(*args: Any, **options: Any) -> Any:
        ctx = plain(*args, **options)
        positions = ctx.query_positions + ctx.query_positions % 2
        return replace(ctx, query_positions=positions, key_positions=positions, first=None, contiguous=False)

    monkeypatch.setattr(call_plan, "context_of", off)
    refused(model, "rope", "it equals the model's own")


def test_an_effect_on_near_tokens_that_were_promised_to_stay(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = model.config.max_position_embeddings
    monkeypatch.setattr(NTK, "unchanged_below", trained)
    refused(model, "ntk", f"moved tokens below position {trained}", factor=4)


@pytest.mark.parametrize("scheme", ["rope", "yarn"])
def test_non_finite_outputs(model: Any, scheme: str) -> None:
    model.model.layers[0].self_attn.v_proj.weight.data[0, 0] = 3e38
    model.model.layers[0].self_attn.o_proj.weight.data[:] *= 1e6
    refused(model, scheme, "not finite", factor=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("scheme", "verdict"),
    [("rope", "identity"), ("dynamic_ntk", "moved"), ("logn", "moved"), ("self_extend", "moved"), ("yarn", "moved")],
)
def test_no_false_alarm_at_the_length_of_a_real_model(scheme: str, verdict: str, dtype: torch.dtype) -> None:
    """Its float32 angles and ours are 0.01 rad apart at the end, which is no fault of either."""
    proof = describe(patch_model(long(dtype), scheme, factor=4)).proof
    assert proof.verdict == verdict
