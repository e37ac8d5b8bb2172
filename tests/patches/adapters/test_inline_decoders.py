"""BLOOM, MPT and Falcon, which compute attention in their own forward."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
    StaticCache,
)

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.errors import AlreadyScaled
from hf_posenc.patches.bloom import BloomAdapter

from ...families.tiny import cached, gap, logits, padded

WIDTH, HEADS, VOCABULARY = 64, 4, 96
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}

VARIANTS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "mpt": {"max_seq_len": 4 * TRAINED_LENGTH, "use_cache": True},
    "falcon multi-query": {},
    "falcon multi-head": {"multi_query": False, "parallel_attn": False, "bias": True},
    "falcon grouped": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon alibi": {"alibi": True, "multi_query": False},
}
"""Name to the settings of a configuration; the first word is the family."""


def tiny_inline(variant: str, *, heads: int = HEADS, layers: int = 2, **settings: Any) -> PreTrainedModel:
    """A model of `VARIANTS` in evaluation mode, whose scores tell positions apart."""
    width, own = WIDTH // HEADS * heads, VARIANTS[variant] | settings
    family = variant.partition(" ")[0]
    model: PreTrainedModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "bloom":
            config = BloomConfig(
                hidden_size=width, n_head=heads, n_layer=layers, seq_length=TRAINED_LENGTH, **SPECIAL, **own
            )
            model = BloomForCausalLM(config)
        elif family == "mpt":
            model = MptForCausalLM(MptConfig(d_model=width, n_heads=heads, n_layers=layers, **SPECIAL, **own))
        else:
            backend = own.pop("attn_implementation", None)
            model = FalconForCausalLM._from_config(
                FalconConfig(
                    hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers,
                    max_position_embeddings=TRAINED_LENGTH, **SPECIAL, **own,
                ),
                attn_implementation=backend,
            )  # fmt: skip
        for weight in model.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=1.5 / math.sqrt(weight.shape[1]))
    return model.eval()


def ids(length: int = 2 * TRAINED_LENGTH, rows: int = 2) -> Tensor:
    """Random ids without those of special tokens."""
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


CLOSE = 2e-5  # of the spread of logits, in float32
TEXT = ids()

variants = pytest.mark.parametrize("variant", VARIANTS)


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
    assert gap(cached(model, TEXT, 8, chunk=8), stock) < CLOSE
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
