"""Rotation of a part of each head: GPT-NeoX's way, transformers' ``proportional``, and their difference."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.models.gptj import modeling_gptj as gptj

from hf_posenc import patch_model
from hf_posenc.core.rotation import rotate, table
from hf_posenc.schemes.rotary.partial import Partial
from hf_posenc.schemes.rotary.proportional import Proportional
from hf_posenc.schemes.rotary.rotary import RoPE

from . import models
from .models import HEAD_DIM, HEADS, TRAINED, VOCABULARY, WIDTH
from .naive import rope

LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax


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


def test_whole_model_proportional_equals_transformers() -> None:
    ids = models.text(2 * TRAINED)
    scaling = {"rope_type": "proportional", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5, "factor": 2.0}
    stock = models.llama(rope_parameters=scaling, max_position_embeddings=2 * TRAINED)
    expected = models.logits(stock, ids)
    assert (models.logits(patch_model(models.llama(), "p_rope", p=0.5, factor=2), ids) - expected).abs().max() <= LIMIT
    assert (models.logits(patch_model(models.llama(), "p_rope", p=0.5), ids) - expected).abs().max() > 0.1  # control


def test_partial_is_not_proportional() -> None:
    """The trap of one name for both: as many pairs turn, but others, at other speeds, in other channels."""
    partial, proportional = Partial(models.geometry(), fraction=0.5), Proportional(models.geometry(), p=0.5)
    ours, full = partial.frequencies(), rope(HEAD_DIM).tolist()
    assert len(ours) == sum(w > 0 for w in proportional.frequencies()) == HEAD_DIM // 4
    assert ours == pytest.approx(rope(HEAD_DIM // 2).tolist())
    assert proportional.frequencies() == pytest.approx([*full[: HEAD_DIM // 4], *[0.0] * (HEAD_DIM // 4)])
    x, positions = torch.ones(1, 1, 1, HEAD_DIM), torch.tensor([[5]])
    moved = {
        name: (rotate(x, r, table(r, positions)) != x).flatten().nonzero().flatten().tolist()
        for name, r in (("partial", partial.rotation()), ("proportional", proportional.rotation()))
    }
    assert moved == {"partial": [*range(8)], "proportional": [0, 1, 2, 3, 8, 9, 10, 11]}
