"""The options of RoPE do what they say, and checkpoints convert from one layout to the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, RoFormerConfig, RoFormerModel

from hf_posenc import patch_model, scheme_of
from hf_posenc.core.rotation import pairs, rotate, table, weight_rows
from hf_posenc.schemes.rotary.rotary import RoPE

from . import models, naive
from .models import HEAD_DIM, HEADS, KV_HEADS, TRAINED, VOCABULARY, WIDTH
from .naive import rope

LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax


def vectors(length: int = 24, seed: int = 0) -> Tensor:
    return torch.randn(1, 2, length, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dims", [16, 6])
def test_row_permutation_round_trip(dims: int) -> None:
    there = weight_rows("half", heads=3, head_dim=16, rotary_dim=dims)
    back = weight_rows("interleaved", heads=3, head_dim=16, rotary_dim=dims)
    assert torch.equal(there[back], torch.arange(48))
    assert not torch.equal(there, torch.arange(48))  # control
    assert there[:8].tolist() == ([0, 2, 4, 6, 8, 10, 12, 14] if dims == 16 else [0, 2, 4, 1, 3, 5, 6, 7])
    assert pairs("half", dims)[1].tolist() == [1, 1 + dims // 2]
    assert pairs("interleaved", dims)[1].tolist() == [2, 3]


def test_a_checkpoint_converts_to_the_other_layout() -> None:
    """Permuted rows of W_q and W_k and the other layout: the same model. The layout alone: another one."""
    ids = models.text(TRAINED)
    converted = models.llama()
    for layer in converted.model.layers:
        own = layer.self_attn
        for projection, heads in ((own.q_proj, HEADS), (own.k_proj, KV_HEADS)):
            projection.weight.data = projection.weight.data[weight_rows("interleaved", heads=heads, head_dim=HEAD_DIM)]
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


def test_rotary_dim_rotates_the_first_channels() -> None:
    scheme = RoPE(models.geometry(), rotary_dim=6)
    assert scheme.rotation().frequencies == pytest.approx([10_000 ** (-2 * m / 6) for m in range(3)])
    x = vectors().float()
    rotated = rotate(x, scheme.rotation(), table(scheme.rotation(), torch.arange(24)[None]))
    assert torch.equal(rotated[..., 6:], x[..., 6:])
