"""Law: where a text was cut into cached pieces must not show in its logits."""

from __future__ import annotations

import pytest
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from hf_posenc import checks
from hf_posenc.checks import Pair
from hf_posenc.checks.tiny_models import TRAINED

from .matrix import CONTINUED, CONTINUED_BY_HOOK

CUTS = {
    "one token": 1,
    "just inside": TRAINED - 1,
    "at the end": TRAINED,
    "just past": TRAINED + 1,
    "twice": 2 * TRAINED,
}
CUTTING = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


@CUTTING
@pytest.mark.parametrize("pair", CONTINUED, ids=str)
def test_cut_is_invisible(pair: Pair, cut: int) -> None:
    """Token by token after the cut."""
    gap = checks.cached_equals_uncached(pair, DynamicCache, cut, step=1)
    assert gap <= pair.limit("cache"), gap


@pytest.mark.parametrize("pair", CONTINUED, ids=str)
def test_chunks_are_invisible(pair: Pair) -> None:
    gap = checks.cached_equals_uncached(pair, DynamicCache, cut=7, step=7)
    assert gap <= pair.limit("cache"), gap


@CUTTING
@pytest.mark.parametrize("pair", CONTINUED_BY_HOOK, ids=str)
def test_cut_is_invisible_in_a_static_cache(pair: Pair, cut: int) -> None:
    gap = checks.cached_equals_uncached(pair, StaticCache, cut)
    assert gap <= pair.limit("cache"), gap


@pytest.mark.parametrize("pair", CONTINUED_BY_HOOK, ids=str)
def test_static_cache_in_company(pair: Pair) -> None:
    for law in (checks.padded_decoding_equals_alone, checks.cache_can_be_reordered):
        gap = law(pair, StaticCache)
        assert gap <= pair.limit(gap.law), gap


@pytest.mark.full
@CUTTING
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache], ids=lambda cache: cache.__name__)
@pytest.mark.parametrize("step", [1, 2, 7, 40])
@pytest.mark.parametrize("pair", CONTINUED, ids=str)
def test_every_cut_step_and_cache(pair: Pair, cache: type[Cache], cut: int, step: int) -> None:
    gap = checks.cached_equals_uncached(pair, cache, cut, step)
    assert gap <= pair.limit("cache"), gap
