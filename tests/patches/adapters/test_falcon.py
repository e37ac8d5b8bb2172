"""Falcon: a rotation, or a bias of the scaled scores; one key head for all queries, for groups of them, or for each."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hf_posenc import describe, patch_model, unpatch_model
from hf_posenc.errors import AlreadyScaled

from .inline import HEADS, VARIANTS, WIDTH, ids, logits, tiny_inline
from .test_inline_decoders import CLOSE, gap

TEXT = ids()
ROTARY = [name for name in VARIANTS if name.startswith("falcon") and "alibi" not in name]


@pytest.mark.parametrize("variant", ROTARY)
def test_rope_equals_the_models_own(variant: str) -> None:
    model = tiny_inline(variant)
    stock = logits(model, TEXT)
    patch_model(model, "rope")
    assert describe(model).proof.verdict == "identity"
    assert gap(logits(model, TEXT), stock) < CLOSE


@pytest.mark.parametrize(
    ("variant", "heads"), [("falcon multi-query", 1), ("falcon multi-head", 4), ("falcon grouped", 2)]
)
def test_keys_are_cached_once_for_a_group(variant: str, heads: int) -> None:
    model = patch_model(tiny_inline(variant), "yarn", factor=2)
    cache = model(TEXT, use_cache=True).past_key_values
    assert cache.layers[0].keys.shape[1] == heads


@pytest.mark.parametrize("heads", [4, 6])
def test_its_bias_is_of_the_scaled_scores(heads: int) -> None:
    """ALiBi's slopes over √head_dim, which is `interpolate`; rounded to bfloat16, which shows for 6 heads."""
    model = tiny_inline("falcon alibi", heads=heads)
    stock = logits(model, TEXT)
    patch_model(model, "host")
    assert gap(logits(model, TEXT), stock) < CLOSE
    unpatch_model(model)
    patch_model(model, "alibi", interpolate=math.sqrt(WIDTH / HEADS))
    assert describe(model).proof.verdict == "identity"
    assert gap(logits(model, TEXT), stock) < CLOSE
    unpatch_model(model)
    patch_model(model, "alibi")
    assert gap(logits(model, TEXT), stock) > 0.1, "control: the slopes of the paper"


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_rotation_that_is_scaled_already(kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
    rope |= {"original_max_position_embeddings": 16} if kind == "yarn" else {}
    model = tiny_inline("falcon grouped", rope_parameters=rope)
    stock = logits(model, TEXT)
    patch_model(model, "host")
    assert gap(logits(model, TEXT), stock) < CLOSE
    unpatch_model(model)
    with pytest.raises(AlreadyScaled, match=kind):
        patch_model(model, "ntk", factor=2)
    unscaled = tiny_inline("falcon alibi", rope_parameters=rope)
    patch_model(unscaled, "ntk", factor=2)  # whose rotation is not used
