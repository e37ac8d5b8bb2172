"""MPT: clipped projections, a factor of the scores of its own, and a bias of its own that ends."""

from __future__ import annotations

from typing import Any

import pytest

from hf_posenc import describe, patch_model, unpatch_model

from .inline import ids, logits, tiny_inline
from .test_inline_decoders import CLOSE, gap, padded

TEXT = ids()


@pytest.mark.parametrize("heads", [4, 6, 14])
@pytest.mark.parametrize("own", [{}, {"clip_qkv": 0.5}, {"softmax_scale": 0.9}], ids=["", "clip_qkv", "softmax_scale"])
def test_alibi_equals_the_models_own(heads: int, own: dict[str, Any]) -> None:
    model = tiny_inline("mpt", heads=heads, attn_config=own)
    tokens, mask = padded(TEXT)
    stock = logits(model, tokens, attention_mask=mask)
    patch_model(model, "alibi", factor=4)
    assert describe(model).proof.verdict == "identity"
    assert gap(logits(model, tokens, attention_mask=mask)[:, 5:], stock[:, 5:]) < CLOSE
    if own:
        unpatch_model(model)
        plain = patch_model(tiny_inline("mpt", heads=heads), "alibi")
        assert gap(logits(plain, tokens, attention_mask=mask), stock) > 1e-3, "control: the setting matters"
