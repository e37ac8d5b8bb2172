"""Attention weights of a probe equal those of eager attention in transformers, on the measured rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM

from hf_posenc import patch_model
from hf_posenc.insight.probe.attention_profile import Tally, attentions_of
from hf_posenc.insight.probe.position_shuffle import chosen_rows, outputs

from ..bench.test_run import Counter

Build = Callable[..., Any]
KINDS = ("llama", "gpt2", "bert")
CLOSE = 2e-6  # float32 weights of at most 1


def looked_at(model: Any, ids: Tensor, rows: list[slice]) -> dict[int, Tensor]:
    """Weights of all rows looked at, layer by layer."""
    found: dict[int, list[Tensor]] = {}
    outputs(model, ids, rows, lambda layer, block, weights, mixed: found.setdefault(layer, []).append(weights))
    return {layer: torch.cat(parts, dim=1) for layer, parts in found.items()}


def eager(kind: str, model: Any, build: Build, ids: Tensor) -> list[Tensor]:
    """transformers' weights, from a second model with the same parameters."""
    other = build(kind, attn_implementation="eager")
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        return [weights[0] for weights in other(ids, output_attentions=True).attentions]


@pytest.mark.parametrize("kind", KINDS)
def test_unpatched_rows_are_those_of_eager(kind: str, build: Build, ids: Tensor) -> None:
    model = build(kind)
    rows = [slice(3, 10), slice(20, 48)]
    for layer, theirs in enumerate(eager(kind, model, build, ids)):
        mine = looked_at(model, ids, rows)[layer]
        wanted = torch.cat([theirs[:, block] for block in rows], dim=1)
        assert torch.allclose(mine, wanted, atol=CLOSE)
        assert not torch.allclose(mine, wanted.flip(0), atol=1e-2)  # control: heads do differ


SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3, "pad_token_id": 0, "sliding_window": 16,
}  # fmt: skip


def with_soft_cap() -> Gemma2ForCausalLM:
    config = Gemma2Config(**SIZES, attn_logit_softcapping=2.0, query_pre_attn_scalar=8, attn_implementation="eager")
    return Gemma2ForCausalLM(config)


def with_sinks() -> GptOssForCausalLM:
    model = GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1))
    for attention in attentions_of(model):
        attention.sinks.data.fill_(2.0)
    return model


@pytest.mark.parametrize("scheme", [None, "host", "logn", "alibi"])
@pytest.mark.parametrize("make", [with_soft_cap, with_sinks])
def test_what_the_models_own_attention_does_to_scores_is_seen(make: Build, scheme: str | None, ids: Tensor) -> None:
    """Gemma 2 caps its scores and gpt-oss has attention sinks: outputs against what its output projections get."""
    torch.manual_seed(0)
    model, received = make().eval(), []
    if scheme is not None:
        patch_model(model, scheme)
    for attention in attentions_of(model):
        attention.o_proj.register_forward_pre_hook(lambda module, inputs: received.append(inputs[0][0]))
    mine = outputs(model, ids, [slice(0, 48)])
    for layer, heads in enumerate(mine):
        wanted = received[layer - len(mine)].unflatten(-1, (4, -1)).transpose(0, 1)
        assert torch.allclose(heads, wanted, rtol=1e-4, atol=1e-5), (layer, (heads - wanted).abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_capturing_does_not_change_the_model(kind: str, build: Build, ids: Tensor) -> None:
    model = build(kind)
    before, config = model(ids).logits, model.config
    looked_at(model, ids, [slice(0, 48)])
    assert torch.equal(model(ids).logits, before)
    assert all(attention.config is config for attention in attentions_of(model))
    assert not any("posenc" in name or name.startswith("_by_") for m in model.modules() for name in m.__dict__)


def test_a_bias_is_the_formula(build: Build, ids: Tensor) -> None:
    """ALiBi on Llama, from the projections of the first layer in float64: softmax(q · k / √d − m |i − j|)."""
    model = build("llama")
    patch_model(model, "alibi", slopes=[0.5, 0.25, 0.125, 0.0625])
    mine = looked_at(model, ids, [slice(24, 48)])[0]
    layer = model.model.layers[0]
    with torch.no_grad():
        states = layer.input_layernorm(model.model.embed_tokens(ids))[0].double()
    projections = layer.self_attn.q_proj, layer.self_attn.k_proj
    q, k = ((states @ project.weight.double().T).view(48, -1, 8).transpose(0, 1) for project in projections)
    distance = torch.arange(48)[:, None] - torch.arange(48)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
    scores = q @ k.repeat_interleave(2, 0).transpose(1, 2) / 8**0.5 - slopes[:, None, None] * distance
    wanted = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)[:, 24:].float()
    assert torch.allclose(mine, wanted, atol=1e-5)


@pytest.mark.parametrize("scheme", ["self_extend", "dynamic_ntk", "t5", "yarn+logn"])
def test_every_route_has_the_weights_of_the_reference(scheme: str, build: Build, ids: Tensor) -> None:
    """Few rows by our own means against all rows as the patched model itself returns them."""
    model, long = build("llama"), ids.repeat(1, 2)
    patch_model(model, scheme, factor=2)
    rows = [slice(40, 56), slice(80, 96)]
    mine = looked_at(model, long, rows)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(long, output_attentions=True).attentions
    for layer, weights in mine.items():
        wanted = torch.cat([theirs[layer][0, :, block] for block in rows], dim=1)
        assert torch.allclose(weights, wanted, atol=1e-5)
        assert torch.allclose(weights.sum(-1), torch.ones(4, 32), atol=1e-5)


@pytest.mark.parametrize("scheme", [None, "alibi", "self_extend"])
def test_no_matrix_of_all_weights_is_ever_held(scheme: str | None, build: Build) -> None:
    length, heads = 1024, 4
    model, text = build("llama"), torch.zeros(1, 1024, dtype=torch.long)
    if scheme is not None:
        patch_model(model, scheme, target_length=length)
    with Counter() as seen:
        outputs(model, text, chosen_rows(length, 256, causal=True), lambda *_: None)
    assert seen.largest < heads * length * length / 8
    with Counter() as control:
        model.set_attn_implementation("eager")
        model(text)
    assert control.largest >= heads * length * length


@pytest.mark.parametrize("causal", [True, False])
def test_a_profile_is_the_mean_over_rows(causal: bool) -> None:
    """Against a loop over all pairs."""
    length, heads = 20, 3
    scores = torch.randn(heads, length, length, generator=torch.Generator().manual_seed(0)).double()
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    rows = [slice(10, 13), slice(17, 20)]
    tally = Tally(heads, length, causal)
    for block in rows:
        tally.add(block, weights[:, block])
    profile, chosen = tally.profile(), [10, 11, 12, 17, 18, 19]
    for h in range(heads):
        for distance in range(0 if causal else 1 - length, length):
            mass = sum(float(weights[h, i, i - distance]) for i in chosen if 0 <= i - distance < length) / 6
            assert float(profile.mass[h, distance - profile.first_distance]) == pytest.approx(mass, abs=1e-12)
        assert float(profile.sink[h]) == pytest.approx(float(weights[h, chosen, 0].sum()) / 6)
    assert torch.allclose(profile.mass.sum(1), torch.ones(heads, dtype=torch.float64))


SPREADS = [(1024, 256, True), (100, 256, True), (300, 64, False), (7, 3, False)]


@pytest.mark.parametrize(("length", "count", "causal"), SPREADS)
def test_rows_are_spread_and_do_not_overlap(length: int, count: int, causal: bool) -> None:
    rows = [i for block in chosen_rows(length, count, causal) for i in range(length)[block]]
    assert rows == sorted(set(rows))
    assert rows[0] == (length // 2 if causal else 0)
    assert rows[-1] == length - 1
    assert len(rows) <= max(count, 64)
