"""RoPE against transformers' two layouts and exact arithmetic, its options, checkpoints of either layout; and xPos."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    RoFormerConfig,
    RoFormerModel,
)
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding

from hf_posenc import patch_model, scheme_of
from hf_posenc.core.geometry import Layout, Rotation, geometric
from hf_posenc.core.rotation import cos_sin, rotate, table
from hf_posenc.schemes.rotary.partial import Partial
from hf_posenc.schemes.rotary.rotary import RoPE
from hf_posenc.schemes.rotary.xpos import XPos

from . import models, naive
from .models import HEAD_DIM, HEADS, KV_HEADS, TRAINED, VOCABULARY, WIDTH
from .naive import Positions, rope

DIMS = 16


def rotated(x: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    rotation = Rotation(geometric(10_000.0, DIMS), layout)
    return rotate(x, rotation, table(rotation, positions))


def vectors(seed: int, length: int = 24) -> Tensor:
    return torch.randn(1, 2, length, DIMS, generator=torch.Generator().manual_seed(seed))


def test_equals_llama_and_roformer() -> None:
    """The half layout is Llama's, the interleaved one RoFormer's."""
    q, k, positions = vectors(3), vectors(4), torch.arange(24)[None]
    config = models.llama().config
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    for ours, theirs in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert (rotated(ours, positions, "half") - theirs).abs().max() < 1e-5  # their angles are float32
    sinusoidal = RoFormerSinusoidalPositionalEmbedding(24, DIMS)
    sinusoidal.weight.data = sinusoidal.create_weight()
    q2, k2 = RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal.weight[None, None], q, k)
    assert (rotated(q, positions, "interleaved") - q2).abs().max() < 1e-6
    assert (rotated(k, positions, "interleaved") - k2).abs().max() < 1e-6


@pytest.mark.parametrize("position", [10**4, 10**5, 10**6])
def test_angles_far_out(position: int) -> None:
    """Tables to float32's last digits, against 50-digit arithmetic."""
    frequencies = geometric(10_000.0, 64)
    cos, sin = (t.flatten().tolist() for t in cos_sin(Rotation(frequencies), torch.tensor([[position]])))
    with mpmath.workdps(50):
        for w, c, s in zip(frequencies, cos, sin, strict=True):
            assert abs(mpmath.cos(mpmath.mpf(w) * position) - c) < 1e-7
            assert abs(mpmath.sin(mpmath.mpf(w) * position) - s) < 1e-7


def test_float32_angles_are_wrong_far_out() -> None:
    """Control: what the float64 angles are for."""
    w, position = geometric(10_000.0, 64)[1], 10**6
    low = torch.cos(torch.tensor(w, dtype=torch.float32) * position)
    assert abs(float(mpmath.cos(mpmath.mpf(w) * position)) - float(low)) > 1e-3


LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax


def test_a_checkpoint_converts_to_the_other_layout() -> None:
    """Permuted rows of W_q and W_k and the other layout: the same model. The layout alone: another one."""
    ids = models.text(TRAINED)
    converted = models.llama()
    for layer in converted.model.layers:
        own = layer.self_attn
        for projection, heads in ((own.q_proj, HEADS), (own.k_proj, KV_HEADS)):
            projection.weight.data = models.interleaved(projection.weight.data, heads)
    stock = models.logits(models.llama(), ids)
    assert (models.logits(patch_model(converted, "rope", layout="interleaved"), ids) - stock).abs().max() <= LIMIT
    as_they_stand = models.logits(patch_model(models.llama(), "rope", layout="interleaved"), ids)
    assert (as_they_stand - stock).abs().max() > 100 * LIMIT  # control


def encoder(kind: type[Any], config: Any) -> Any:
    torch.manual_seed(0)
    return models.sharpened(kind(config))


@pytest.mark.parametrize("on_v", [False, True])
def test_bert_becomes_roformer(on_v: bool) -> None:
    """A whole RoFormer with the weights of a patched BERT; ``rotary_value`` rotates its values too."""
    shape = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    shape |= {"vocab_size": VOCABULARY, "max_position_embeddings": TRAINED}
    bert = encoder(BertModel, BertConfig(**shape)).eval()
    roformer = RoFormerModel(RoFormerConfig(**shape, embedding_size=WIDTH, rotary_value=on_v)).eval()
    missing, unused = roformer.load_state_dict(bert.state_dict(), strict=False)
    assert {name.split(".")[-1] for name in unused} <= {"weight", "bias", "position_ids"}
    assert all("embed_positions" in name for name in missing)
    ids = models.text(TRAINED)[None]
    patch_model(bert, "rope", layout="interleaved", on_v=on_v)
    with torch.no_grad():
        ours, theirs = bert(ids).last_hidden_state, roformer(ids).last_hidden_state
    assert (ours - theirs).abs().max() <= LIMIT
    with torch.no_grad():
        roformer.config.rotary_value = not on_v
        for layer in roformer.encoder.layer:
            layer.attention.self.rotary_value = not on_v
        other = roformer(ids).last_hidden_state
    assert (other - theirs).abs().max() > 100 * LIMIT  # control


def test_learned_frequencies_change_the_logits() -> None:
    """ω_m e^(δ_m), in the whole model against the formula, with gradients to every δ."""
    ids = models.text(TRAINED)
    learned = patch_model(models.llama(), "rope", learn_freq=True)
    scheme = scheme_of(learned)
    assert isinstance(scheme, RoPE)
    assert scheme.correction is not None
    torch.nn.init.normal_(scheme.correction, std=0.3)
    scaled = rope(HEAD_DIM) * scheme.correction.detach().double().exp()
    expected = naive.llama(models.llama(), ids, replace(naive.causal(TRAINED), frequencies=scaled))
    assert (models.logits(learned, ids) - expected).abs().max() <= LIMIT
    assert (models.logits(models.llama(), ids) - expected).abs().max() > 100 * LIMIT  # control
    learned(ids[None], labels=ids[None]).loss.backward()
    gradient = scheme.correction.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


def neox(fraction: float, base: float = 10_000.0) -> GPTNeoXForCausalLM:
    """With GPT-2's order of norms and its activation."""
    config = GPTNeoXConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=2, intermediate_size=4 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=8 * TRAINED, hidden_act="gelu_new", use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": base, "partial_rotary_factor": fraction},
    )  # fmt: skip
    return GPTNeoXForCausalLM(config).eval()


def in_neox_order(fused: torch.Tensor) -> torch.Tensor:
    """Rows [q of all heads, k, v] as [q, k, v of each head]."""
    return fused.unflatten(0, (3, HEADS, HEAD_DIM)).transpose(0, 1).flatten(0, 2)


@torch.no_grad()
def copied(gpt2: GPT2LMHeadModel, fraction: float) -> GPTNeoXForCausalLM:
    """A NeoX with a GPT-2's weights, its position table left out."""
    other = neox(fraction)
    other.gpt_neox.embed_in.weight.copy_(gpt2.transformer.wte.weight)
    other.get_output_embeddings().weight.copy_(gpt2.lm_head.weight)
    other.gpt_neox.final_layer_norm.load_state_dict(gpt2.transformer.ln_f.state_dict())
    for ours, theirs in zip(gpt2.transformer.h, other.gpt_neox.layers, strict=True):
        theirs.input_layernorm.load_state_dict(ours.ln_1.state_dict())
        theirs.post_attention_layernorm.load_state_dict(ours.ln_2.state_dict())
        theirs.attention.query_key_value.weight.copy_(in_neox_order(ours.attn.c_attn.weight.T))
        theirs.attention.query_key_value.bias.copy_(in_neox_order(ours.attn.c_attn.bias))
        for one, two in (
            (ours.attn.c_proj, theirs.attention.dense),
            (ours.mlp.c_fc, theirs.mlp.dense_h_to_4h),
            (ours.mlp.c_proj, theirs.mlp.dense_4h_to_h),
        ):
            two.weight.copy_(one.weight.T)
            two.bias.copy_(one.bias)
    return other


@pytest.mark.parametrize("fraction", [0.25, 0.3, 1.0])
def test_gpt2_becomes_neox(fraction: float) -> None:
    """A whole GPT-NeoX with the weights of a patched GPT-2."""
    ids = models.text(3 * TRAINED)
    expected = models.logits(copied(models.gpt2(), fraction), ids)
    patched = patch_model(models.gpt2(), "partial", fraction=fraction, factor=3)
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    other = models.logits(copied(models.gpt2(), 0.75), ids)
    assert (other - expected).abs().max() > 100 * LIMIT  # control: another fraction


@pytest.mark.parametrize("rotary_dim", [4, 8, 16])
def test_interleaved_equals_gptj(rotary_dim: int) -> None:
    """By the number of channels or the fraction of them."""
    q = torch.randn(1, 2, 20, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    sin, cos = gptj.create_sinusoidal_positions(20, rotary_dim)[None].chunk(2, dim=-1)
    rotated = gptj.apply_rotary_pos_emb(q[..., :rotary_dim].transpose(1, 2), sin, cos).transpose(1, 2)
    theirs = torch.cat((rotated, q[..., rotary_dim:]), dim=-1)
    geometry, positions = models.geometry(), torch.arange(20)[None]
    for scheme in (
        RoPE(geometry, rotary_dim=rotary_dim, layout="interleaved"),
        Partial(geometry, fraction=rotary_dim / HEAD_DIM, layout="interleaved"),
    ):
        rotation = scheme.rotation()
        assert (rotate(q, rotation, table(rotation, positions)) - theirs).abs().max() < 1e-5  # their angles are float32


def fading(gamma: float = 0.4) -> Tensor:
    """ζ_m of every pair, float64."""
    m = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
    return (2 * m + gamma * HEAD_DIM) / ((1 + gamma) * HEAD_DIM)


@dataclass(frozen=True)
class Fading(Positions):
    """Every pair of channels fades by ζ^(Δ / B) while it turns."""

    scale_base: float = 512.0
    gamma: float = 0.4

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        distance = self.distance.clamp(min=0).double()[..., None]
        rotation = torch.polar(fading(self.gamma) ** (distance / self.scale_base), distance * naive.rope(HEAD_DIM))
        q, k = naive.as_complex(query), naive.as_complex(key)
        return torch.einsum("him,hjm,ijm->hij", q, k.conj(), rotation).real


@pytest.mark.parametrize(("scale_base", "gamma"), [(512.0, 0.4), (20.0, 1.0), (2.0, 0.4)])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_whole_models(model: str, scale_base: float, gamma: float) -> None:
    """With gradients. At B = 2 a text of 128 tokens spans many chunks: the factors of its ends are e^±80 apart."""
    build, formula = models.MODELS[model]
    ids, free = models.text(4 * TRAINED), naive.causal(4 * TRAINED)
    patched = patch_model(build(), "xpos", scale_base=scale_base, gamma=gamma, factor=4)
    text = Fading(free.seen, free.distance, scale_base=scale_base, gamma=gamma)
    expected, expected_gradient = models.dense_with_gradient(model, build(), ids, text)
    found, gradient = models.with_gradient(patched, ids)
    assert (found - expected).abs().max() < 1e-4
    assert (gradient - expected_gradient).abs().max() < 1e-4 * expected_gradient.abs().max()
    slower = formula(build(), ids, Fading(free.seen, free.distance, scale_base=scale_base, gamma=2 * gamma))
    assert (slower - expected).abs().max() > 1e-3  # control


def test_factors_stay_bounded() -> None:
    """A key at a million is scaled as one of the first chunk is."""
    scheme = XPos(models.geometry(trained=2048))
    positions = torch.tensor([[0, 10**6, 10**6 + scheme.chunk - 1]])
    decay_steps = scheme.key_decay_steps(positions)
    assert int(decay_steps.max()) < scheme.chunk
    assert scheme.decay[0] * scheme.chunk <= 5.0
    assert scheme.decay[0] == pytest.approx(-math.log(0.4 / 1.4) / 512)
