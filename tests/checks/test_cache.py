"""Check: where a text was cut into cached pieces must not show in its logits."""

from __future__ import annotations

import pytest
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from .matrix import CONTINUED, CONTINUED_BY_HOOK

CUTS = {
    "one token": 1,
    "just inside": TRAINED_LENGTH - 1,
    "at the end": TRAINED_LENGTH,
    "just past": TRAINED_LENGTH + 1,
    "twice": 2 * TRAINED_LENGTH,
}
CUTTING = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


@CUTTING
@pytest.mark.parametrize("pair", CONTINUED, ids=str)
def test_cut_is_invisible(pair: Case, cut: int) -> None:
    """Token by token after the cut."""
    gap = checks.cached_equals_uncached(pair, DynamicCache, cut, step=1)
    assert gap <= pair.limit("cache"), gap


@pytest.mark.parametrize("pair", CONTINUED, ids=str)
def test_chunks_are_invisible(pair: Case) -> None:
    gap = checks.cached_equals_uncached(pair, DynamicCache, cut=7, step=7)
    assert gap <= pair.limit("cache"), gap


@CUTTING
@pytest.mark.parametrize("pair", CONTINUED_BY_HOOK, ids=str)
def test_cut_is_invisible_in_a_static_cache(pair: Case, cut: int) -> None:
    gap = checks.cached_equals_uncached(pair, StaticCache, cut)
    assert gap <= pair.limit("cache"), gap


@pytest.mark.parametrize("pair", CONTINUED_BY_HOOK, ids=str)
def test_static_cache_in_company(pair: Case) -> None:
    for check in (checks.padded_decoding_equals_alone, checks.cache_can_be_reordered):
        gap = check(pair, StaticCache)
        assert gap <= pair.limit(gap.check), gap


@pytest.mark.full
@CUTTING
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache], ids=lambda cache: cache.__name__)
@pytest.mark.parametrize("step", [1, 2, 7, 40])
@pytest.mark.parametrize("pair", CONTINUED, ids=str)
def test_every_cut_step_and_cache(pair: Case, cache: type[Cache], cut: int, step: int) -> None:
    gap = checks.cached_equals_uncached(pair, cache, cut, step)
    assert gap <= pair.limit("cache"), gap
