"""Schemes that need the whole text refuse to go on from a cache, and say how to generate without one."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, new_cache, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.errors import NeedsWholeText

from .matrix import DECODERS

WHOLE = [pair for pair in DECODERS if pair.needs_whole_text]


def test_there_are_some() -> None:
    assert {pair.scheme_name for pair in WHOLE} >= {"norm01", "randpos"}


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache], ids=lambda cache: cache.__name__)
@pytest.mark.parametrize("pair", WHOLE, ids=str)
def test_a_cached_text_is_not_continued(pair: Case, cache: type[Cache]) -> None:
    with pair.patched() as model:
        kept, tokens = new_cache(cache, model, TRAINED_LENGTH), random_tokens(model, TRAINED_LENGTH // 2)
        forward(model, tokens, past_key_values=kept)
        with pytest.raises(NeedsWholeText, match=r"16 tokens are cached .* use_cache=False"):
            forward(model, tokens[:, :1], past_key_values=kept)


@pytest.mark.parametrize("pair", WHOLE, ids=str)
def test_generation_without_a_cache(pair: Case) -> None:
    with pair.patched() as model:
        tokens = random_tokens(model, TRAINED_LENGTH // 2)
        with pytest.raises(NeedsWholeText):
            model.generate(tokens, max_new_tokens=3, do_sample=False)
        torch.manual_seed(0)
        assert model.generate(tokens, max_new_tokens=3, do_sample=False, use_cache=False).shape[1] == len(tokens[0]) + 3
