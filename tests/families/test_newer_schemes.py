"""The schemes of 2024 to 2026 on families whose layers differ: with a cache and without, padded, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hf_posenc import from_pretrained, patch_model
from hf_posenc.errors import SchemeNotDefined
from hf_posenc.patching.state import base_model_of, describe

from .test_families import CLOSE, assert_close, cached, logits
from .tiny import tiny, tokens

SCHEMES = {
    "jet_long": {"window": 3},
    "mrrope": {},
    "resonance": {},
    "yarn+resonance": {},
    "clipped_rope": {"pairs": 6},
    "mrrope+jet_long": {"window": 3},
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "modernbert"])
def test_the_same_by_every_way(name: str, scheme: str, tmp_path: Path) -> None:
    encoder, ids = name == "modernbert", tokens(40)
    model = tiny(name, masked=encoder, **({} if name == "qwen3" else {"sliding_window": 8}))
    stock = logits(model, ids)
    lengths = {"trained_length": 10, "factor": 4}
    if encoder and "jet_long" in scheme:
        with pytest.raises(SchemeNotDefined):
            patch_model(model, scheme, **lengths, **SCHEMES[scheme])
        return
    patch_model(model, scheme, **lengths, **SCHEMES[scheme])
    whole = logits(model, ids)
    assert float((whole - stock).abs().max() / stock.std()) > 100 * CLOSE  # control
    if not encoder:
        assert_close(cached(model, ids, 12), whole)
        assert_close(cached(model, ids, 12, chunk=7), whole)
    padded, mask = torch.nn.functional.pad(ids, (5, 0)), torch.ones(2, 45, dtype=torch.long)
    mask[:, :5] = 0
    assert_close(logits(model, padded, attention_mask=mask)[:, 5:], whole)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path).eval()
    assert describe(loaded).scheme == scheme
    assert base_model_of(loaded)[0].config.model_type == model.config.model_type
    assert_close(logits(loaded, ids), whole)
