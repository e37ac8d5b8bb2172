"""Forms that families of transformers have natively, against the family's own class with copied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel

from hf_posenc import patch_model, unpatch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.rotation import rotate, table
from hf_posenc.insight import families
from hf_posenc.schemes.attention_scale.ssmax import SSMax
from hf_posenc.schemes.rotary.rotary import RoPE

from ..families.tiny import tiny, tokens
from . import models
from .models import HEAD_DIM, HEADS

POSITIONS = torch.arange(300)[None]


def logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_ssmax_is_the_query_scale_of_mistral_large_4() -> None:
    module = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    theirs = module.MistralLarge4TextSoftmaxScaling(HEADS)
    theirs.scale.copy_(drawn(HEADS))
    theirs.bias.copy_(drawn(HEADS, seed=1))
    ours, query = SSMax(models.geometry(), s_init=0, bias=1), drawn(1, HEADS, 300, HEAD_DIM, seed=2)
    ctx = PositionContext(POSITIONS, POSITIONS, causal=True, contiguous=True)
    assert torch.equal(ours.row_scale(ctx), torch.ones(1, HEADS, 300))  # as theirs starts
    ours.load_state_dict({"s": theirs.scale, "b": theirs.bias})
    expected = theirs(query, POSITIONS, head_dim_first=True)
    assert torch.allclose(query * ours.row_scale(ctx)[..., None], expected, atol=1e-5)
    one_later = PositionContext(POSITIONS + 1, POSITIONS + 1, causal=True, contiguous=True)
    assert not torch.allclose(query * ours.row_scale(one_later)[..., None], expected, atol=1e-2)  # control


@torch.no_grad()
def test_learned_frequencies_are_those_of_mistral_large_4() -> None:
    module = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    config = module.MistralLarge4TextConfig(qk_rope_head_dim=HEAD_DIM)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    theirs, ours = module.MistralLarge4TextRotaryEmbedding(config), RoPE(
        models.geometry(), learn_freq=True, layout="interleaved"
    )  # fmt: skip
    theirs.alpha.copy_(0.1 * drawn(HEAD_DIM // 2))
    ours.load_state_dict({"correction": theirs.alpha})
    key = drawn(1, HEADS, 300, HEAD_DIM)
    split, _ = module.apply_rotary_pos_emb_interleave(key, None, *theirs(key, POSITIONS))
    expected = torch.stack(split.chunk(2, -1), dim=-1).flatten(-2)  # pairs side by side again
    rotation = ours.rotation()
    assert torch.allclose(rotate(key, rotation, table(rotation, POSITIONS)), expected, atol=1e-4)
    ours.reset_parameters()
    rotation = ours.rotation()
    assert not torch.allclose(rotate(key, rotation, table(rotation, POSITIONS)), expected, atol=1e-1)  # control


GLOBAL = {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
LOCAL = {"sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}


@pytest.mark.parametrize(
    ("family", "native", "scheme", "options", "other"),
    [
        (
            "gemma4_text", {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
            "proportional", {"p": 0.25, "base": 1_000_000.0}, {"p": 0.5},
        ),
        (
            "laguna", {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 500_000.0},
            "partial", {"fraction": 0.5, "base": 500_000.0}, {"base": 10_000.0},
        ),
        (
            "gemma3_text", {"rope_type": "default", "rope_theta": 1_000_000.0},
            "abf", {"base": 1_000_000.0}, {"base": 10_000.0},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_global_layers_of_their_own(
    family: str, native: dict[str, Any], scheme: str, options: dict[str, Any], other: dict[str, Any]
) -> None:
    """θ, the rotated width and p-RoPE of the layers that see all keys; local ones keep the model's rotation."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"no {family} in this transformers")
    kinds = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 8}
    theirs = tiny(family, rope_parameters=LOCAL | {"full_attention": native}, **kinds)
    plain, ids = tiny(family, rope_parameters=LOCAL | GLOBAL, **kinds), tokens(40)
    plain.load_state_dict(theirs.state_dict())
    expected = logits(theirs, ids)
    patch_model(plain, scheme, layers={":3": "host"}, **options)
    assert (logits(plain, ids) - expected).abs().max() <= 1e-4 * expected.std()
    patch_model(unpatch_model(plain), scheme, layers={":3": "host"}, **(options | other))
    assert (logits(plain, ids) - expected).abs().max() > 1e-2 * expected.std()  # control


@pytest.mark.parametrize(
    ("family", "native"),
    [
        ("bloom", "alibi"),
        ("gpt2", "learned"),
        ("phi", "partial"),
        ("smollm3", "rope, none"),
        ("mistral", "rope+window"),
    ],
)
def test_the_own_positions_of_a_family_as_schemes(family: str, native: str) -> None:
    """As their papers say; the documented table is made by the same function."""
    assert families.one(family)[0].native == native
