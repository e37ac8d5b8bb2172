"""The proof of effect: moved, identity, deferred; patches without effect or with a wrong one are refused.

The latter are tried on a small model and on one of a real model's length: at position 10⁵ the model's own float32
angles are off by hundredths of a radian, which must neither pass for an effect nor be taken for a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc import describe, from_pretrained, is_patched, patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core.regions import Region
from hf_posenc.errors import AdapterInvalid, NoEffect
from hf_posenc.forward import call_plan
from hf_posenc.schemes.rotary.ntk import NTK
from hf_posenc.schemes.rotary.rotary import RoPE

from ..families.tiny import tiny

TEXT = torch.randint(3, 60, (1, TRAINED_LENGTH - 1), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "scheme"), [("llama", "rope"), ("llama", "yarn"), ("gpt2", "learned"), ("bert", "learned")]
)
def test_the_models_own_scheme_is_an_identity(name: str, scheme: str) -> None:
    proof = describe(patch_model(tiny_model(name), scheme)).proof
    assert proof.verdict == "identity"
    assert proof.change < 1e-4


def test_freshly_initialised_model_shows_a_faint_scheme() -> None:
    """Its attention is almost even, so a scaling hardly shows: the probe sharpens the scores until it does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(tiny_model("llama").config)
    assert describe(patch_model(model, "pi", factor=1.1)).proof.verdict == "moved"


def test_remap_whose_window_is_never_left_is_an_identity() -> None:
    """Distances up to the window stay, and without a factor no token of the target stands further away."""
    model = patch_model(tiny_model("llama"), "rerope", window=TRAINED_LENGTH - 1)
    assert describe(model).proof.verdict == "identity"


@pytest.mark.parametrize("step", ["install_atomic_save", "install_batching_check"])
def test_what_fails_after_the_proof_leaves_no_patch(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(f"hf_posenc.patching.patch.{step}", fails)
    model = tiny_model("llama")
    with pytest.raises(RuntimeError, match="no"):
        patch_model(model, "yarn", factor=4)
    assert not is_patched(model)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


def test_what_reads_hidden_states_that_are_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NTK, "regions", lambda _, ctx: (Region(query_at=ctx.hidden.mean),))
    with pytest.raises(AdapterInvalid, match=r"test_proof.py.*'ntk', which is also called with ctx.hidden = None"):
        patch_model(tiny_model("llama"), "ntk", factor=4)


def test_training_mode_and_random_numbers_are_left_alone() -> None:
    model = tiny_model("gpt2").train()
    model.transformer.h[1].eval()
    state = torch.random.get_rng_state()
    patch_model(model, "rope", factor=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.transformer.h[0].attn.training
    assert not model.transformer.h[1].attn.training


@pytest.mark.parametrize("layers", [{"1": "none"}, {"0": "rope", "1": "alibi"}], ids=str)
def test_every_kind_of_layer_is_proved(layers: dict[int | str, str]) -> None:
    """The first layer is unpatched and the second is not, and the report must show that."""
    assert describe(patch_model(tiny_model("llama"), "rope", layers=layers)).proof.verdict == "moved"


@pytest.mark.parametrize(
    ("size", "own", "verdict"), [(12, 7, "identity"), (7, 7, "identity"), (5, 7, "moved"), (12, None, "moved")]
)
def test_a_window_within_the_models_own(size: int, own: int | None, verdict: str) -> None:
    """A wider one hides nothing more; logits say so, though a layer that is run without a mask does not."""
    model = tiny("mistral", num_hidden_layers=2, max_position_embeddings=TRAINED_LENGTH, sliding_window=own)
    ids = torch.randint(3, 96, (1, 2 * TRAINED_LENGTH))
    with torch.no_grad():
        before = model(ids).logits
        patch_model(model, "window", size=size, factor=4)
        changed = (model(ids).logits - before).abs().max() > 1e-4
    assert describe(model).proof.verdict == verdict
    assert bool(changed) == (verdict == "moved")


@pytest.mark.parametrize("scheme", ["host+cope", "rope+cope", "yarn+cope"])
@pytest.mark.parametrize("spread", [1e-6, 1e-4, 0.02, 0.3])
def test_what_was_zero_until_it_was_trained_loads_again(scheme: str, spread: float, tmp_path: Path) -> None:
    """Without a factor nothing but CoPE's table differs from the model: trained, it moves outputs by any amount."""
    model = patch_model(tiny_model("llama"), scheme)
    assert describe(model).proof.verdict == "identity"
    for name, weight in model.named_parameters():
        if "posenc" in name:
            torch.nn.init.normal_(weight, std=spread)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert torch.equal(loaded(TEXT).logits, model(TEXT).logits)
    assert describe(loaded).proof.verdict == ("identity" if spread < 1e-5 else "moved")


@pytest.mark.parametrize("name", ["gpt2", "bert"])
@torch.no_grad()
def test_host_keeps_the_position_table_under_a_bias(name: str) -> None:
    """Against the unpatched model with the bias added to its mask."""
    model = tiny_model(name)
    heads, length = model.config.num_attention_heads, TEXT.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    bias = -torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])[:, None, None] * distance.abs()
    if name == "gpt2":
        bias = bias.masked_fill(distance < 0, torch.finfo(torch.float32).min)
    expected = model(TEXT, attention_mask=bias[None])[0]
    torch.testing.assert_close(patch_model(model, "host+alibi")(TEXT)[0], expected, atol=1e-5, rtol=0)
    assert all(weight.requires_grad for weight in model.parameters())


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


def refusal(model: Any, scheme: str, **options: Any) -> str:
    """What the error says that a patch ends in."""
    with pytest.raises(NoEffect) as raised:
        patch_model(model, scheme, **options)
    return "patched" if is_patched(model) else str(raised.value)


def other_rotation(cls: type[RoPE]) -> Callable[..., Any]:
    """`region_rotations` as under another scheme, whatever the model's own is."""
    plain = call_plan.region_rotations
    return lambda scheme, ctx, **stored: plain(cls(scheme.geometry), ctx, **stored)


@pytest.mark.parametrize("scheme", ["pi", "ntk", "ntk_parts", "llama3"])
def test_a_rotation_that_nobody_applies(model: Any, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_plan, "region_rotations", other_rotation(RoPE))
    assert "nothing moved" in refusal(model, scheme, factor=4)


def test_the_hosts_own_rotation_done_otherwise(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_plan, "region_rotations", other_rotation(NTK))
    assert "it equals the model's own" in refusal(model, "rope", factor=4)


def test_positions_a_tenth_off(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them by as much would be a shift, to which a rotation is blind: every second one."""
    plain = call_plan.context_of

    def off(*args: Any, **options: Any) -> Any:
        ctx = plain(*args, **options)
        positions = ctx.query_positions + ctx.query_positions % 2
        return replace(ctx, query_positions=positions, key_positions=positions, first=None, contiguous=False)

    monkeypatch.setattr(call_plan, "context_of", off)
    assert "it equals the model's own" in refusal(model, "rope")


def test_an_effect_on_near_tokens_that_were_promised_to_stay(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = model.config.max_position_embeddings
    monkeypatch.setattr(NTK, "unchanged_below", trained)
    assert f"moved tokens below position {trained}" in refusal(model, "ntk", factor=4)


@pytest.mark.parametrize("scheme", ["rope", "yarn"])
def test_non_finite_outputs(model: Any, scheme: str) -> None:
    model.model.layers[0].self_attn.v_proj.weight.data[0, 0] = 3e38
    model.model.layers[0].self_attn.o_proj.weight.data[:] *= 1e6
    assert "infinite or NaN" in refusal(model, scheme, factor=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("scheme", "verdict"),
    [("rope", "identity"), ("dynamic_ntk", "moved"), ("logn", "moved"), ("self_extend", "moved"), ("yarn", "moved")],
)
def test_no_false_alarm_at_the_length_of_a_real_model(scheme: str, verdict: str, dtype: torch.dtype) -> None:
    """Its float32 angles and ours are 0.01 rad apart at the end, which is no fault of either."""
    proof = describe(patch_model(long(dtype), scheme, factor=4)).proof
    assert proof.verdict == verdict
