"""Schemes that need the whole text refuse to continue from a KV cache, and name `use_cache=False`."""

from __future__ import annotations

import pytest
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, new_cache, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.errors import NeedsWholeText

from .case_lists import DECODERS

WHOLE_TEXT = [case for case in DECODERS if case.needs_whole_text]


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache], ids=lambda cache: cache.__name__)
@pytest.mark.parametrize("case", WHOLE_TEXT, ids=str)
def test_a_cached_text_is_not_continued(case: Case, cache: type[Cache]) -> None:
    with case.patched() as model:
        kept, tokens = new_cache(cache, model, TRAINED_LENGTH), random_tokens(model, TRAINED_LENGTH // 2)
        forward(model, tokens, past_key_values=kept)
        with pytest.raises(NeedsWholeText, match=r"16 tokens are cached .* use_cache=False"):
            forward(model, tokens[:, :1], past_key_values=kept)
