"""A call that is refused where attention is computed leaves the KV cache as it was: the next has the right logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from hf_posenc import patch_model
from hf_posenc.cache.snapshot import LayerSnapshot
from hf_posenc.errors import BackendCannotCarry, UnknownKeyword

from ..small_models import llama

SCHEMES = ("alibi", "fox", "rerope", "sinks", "dynamic_ntk", "shaw")
CACHES = {
    "growing": lambda model: DynamicCache(config=model.config), "layer by layer": lambda model: DynamicCache(),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=20),
}  # fmt: skip
LENGTH, NEW = 12, 4


def refused_keyword(model: Any, ids: torch.Tensor, cache: Cache) -> None:
    with torch.no_grad(), pytest.raises(UnknownKeyword):
        model(ids, past_key_values=cache, softcap=30.0)


def refused_backend(model: Any, ids: torch.Tensor, cache: Cache) -> None:
    """Flex attention has no backward pass on a CPU."""
    model.set_attn_implementation("flex_attention")
    with pytest.raises(BackendCannotCarry):
        model(ids, past_key_values=cache)
    model.set_attn_implementation("sdpa")


@pytest.mark.slow
@pytest.mark.parametrize("refused", [refused_keyword, refused_backend])
@pytest.mark.parametrize("past", [0, LENGTH - NEW])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_call_can_be_made_again(scheme: str, kind: str, past: int, refused: Any) -> None:
    model = patch_model(llama(max_position_embeddings=8), scheme, factor=4)
    ids = torch.randint(64, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    cache = CACHES[kind](model)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        if past:
            model(ids[:, :past], past_key_values=cache)
    refused(model, ids[:, past:], cache)
    with torch.no_grad():
        found = model(ids[:, past:], past_key_values=cache).logits
    torch.testing.assert_close(found, whole[:, past:], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_without_it_the_logits_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control."""
    monkeypatch.setattr(LayerSnapshot, "restore", lambda before: None)
    with pytest.raises(AssertionError, match="not close"):
        test_the_call_can_be_made_again("alibi", "growing", LENGTH - NEW, refused_backend)
