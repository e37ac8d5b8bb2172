"""BLOOM, MPT and Falcon in all their layouts: every hook of a scheme, every way to call, the model's own outputs."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, StaticCache

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.patches.bloom import BloomAdapter

from .inline import VARIANTS, ids, logits, tiny_inline

CLOSE = 2e-5  # of the spread of logits, in float32
TEXT = ids()

variants = pytest.mark.parametrize("variant", VARIANTS)


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


def padded(tokens: Tensor, by: int = 5) -> tuple[Tensor, Tensor]:
    """Left-padded ids and their mask."""
    padding = torch.zeros(len(tokens), by, dtype=torch.long)
    return torch.cat((padding, tokens), 1), torch.cat((padding, torch.ones_like(tokens)), 1)


@variants
def test_the_models_own_positions(variant: str) -> None:
    """At once, left-padded and from a cache; unpatched, everything is as before."""
    model = tiny_inline(variant)
    tokens, mask = padded(TEXT)
    stock, stock_padded = logits(model, TEXT), logits(model, tokens, attention_mask=mask)
    patch_model(model, "host")
    assert describe(model).proof.verdict == "identity"
    assert gap(logits(model, TEXT), stock) < CLOSE
    assert gap(logits(model, tokens, attention_mask=mask)[:, 5:], stock_padded[:, 5:]) < CLOSE
    cache = None
    for start in range(0, TEXT.shape[1], 8):
        with torch.no_grad():
            out = model(TEXT[:, start : start + 8], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        assert gap(out.logits, stock[:, start : start + 8]) < CLOSE
    unpatch_model(model)
    assert torch.equal(logits(model, TEXT), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


@variants
@pytest.mark.parametrize("scheme", ["host", "yarn", "alibi", "sinks"])
def test_a_static_cache(variant: str, scheme: str) -> None:
    model = patch_model(tiny_inline(variant), scheme, trained_length=16, factor=4)
    whole, cache = logits(model, TEXT), StaticCache(config=model.config, max_cache_len=80)
    parts = [logits(model, TEXT[:, :30], past_key_values=cache)]
    parts += [logits(model, TEXT[:, at : at + 1], past_key_values=cache) for at in range(30, TEXT.shape[1])]
    assert gap(torch.cat(parts, 1), whole) < CLOSE


@variants
def test_the_base_model_alone(variant: str, tmp_path: Path) -> None:
    """It is the very module that changes its class; files, copies and pickles name the model's own."""
    base = tiny_inline(variant).base_model
    own = type(base)
    patch_model(base, "t5")
    wanted = base(TEXT).last_hidden_state
    base.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [own.__name__]
    for other in (from_pretrained(tmp_path), copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert gap(other.eval()(TEXT).last_hidden_state, wanted) < CLOSE
        unpatch_model(other)
        assert type(other) is own
    unpatch_model(base)
    assert type(base) is own


OWN_ALIBI: list[tuple[str, dict[str, Any]]] = [
    ("bloom", {}),
    *(("mpt", {"attn_config": own}) for own in ({}, {"clip_qkv": 0.5}, {"softmax_scale": 0.9})),
]


@pytest.mark.parametrize("heads", [4, 6, 14])
@pytest.mark.parametrize(("variant", "settings"), OWN_ALIBI, ids=str)
def test_alibi_equals_the_models_own(variant: str, settings: dict[str, Any], heads: int) -> None:
    """Also where the number of heads is no power of two."""
    model = tiny_inline(variant, heads=heads, **settings)
    tokens, mask = padded(TEXT)
    stock = logits(model, tokens, attention_mask=mask)
    patch_model(model, "alibi", factor=4)
    assert describe(model).proof.verdict == "identity"
    assert gap(logits(model, tokens, attention_mask=mask)[:, 5:], stock[:, 5:]) < CLOSE
    unpatch_model(model)
    patch_model(model, "alibi", slopes="geometric")
    plain = gap(logits(model, tokens, attention_mask=mask)[:, 5:], stock[:, 5:])
    assert (plain < CLOSE) == (heads == 4), "control: another rule for 6 and 14 heads"
    if settings.get("attn_config"):
        without = patch_model(tiny_inline(variant, heads=heads), "alibi")
        assert gap(logits(without, tokens, attention_mask=mask), stock) > 1e-3, "control: the setting matters"


def test_trained_length_of_bloom(tmp_path: Path) -> None:
    """Its configuration need not have one: ``seq_length`` if it is there, else 2,048; saved and loaded alike."""
    assert BloomAdapter().trained_length(BloomConfig()) == 2048
    model = tiny_inline("bloom")
    assert not hasattr(model.config, "max_position_embeddings")
    patch_model(model, "yarn", factor=2)
    report = describe(model)
    assert (report.trained_length, report.target_length, model.config.max_position_embeddings) == (32, 64, 64)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert describe(loaded).to_dict() == report.to_dict()
    unpatch_model(model)
    assert not hasattr(model.config, "max_position_embeddings")
