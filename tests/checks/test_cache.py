"""A text in cached chunks equals one forward pass, for every length of the first chunk and every cache class."""

from __future__ import annotations

import pytest
from transformers.cache_utils import DynamicCache, StaticCache

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from .case_lists import CACHEABLE, CACHEABLE_ONE_PER_HOOKS

CUTS = {
    "one token": 1,
    "just inside": TRAINED_LENGTH - 1,
    "at the end": TRAINED_LENGTH,
    "just past": TRAINED_LENGTH + 1,
    "twice": 2 * TRAINED_LENGTH,
}
EVERY_CUT = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
OTHER_CUTS = {name: cut for name, cut in CUTS.items() if name != "just past"}


@pytest.mark.parametrize("case", CACHEABLE, ids=str)
def test_decoding_just_past_the_trained_length(case: Case) -> None:
    """Token by token after the first chunk."""
    deviation = checks.cached_equals_uncached(case, DynamicCache, CUTS["just past"], step=1)
    assert deviation <= case.tolerance("cache"), deviation


@pytest.mark.slow
@pytest.mark.parametrize("cut", OTHER_CUTS.values(), ids=OTHER_CUTS)
@pytest.mark.parametrize("case", CACHEABLE_ONE_PER_HOOKS, ids=str)
def test_decoding_after_a_prefill(case: Case, cut: int) -> None:
    """Token by token after the first chunk."""
    deviation = checks.cached_equals_uncached(case, DynamicCache, cut, step=1)
    assert deviation <= case.tolerance("cache"), deviation


@pytest.mark.parametrize("case", CACHEABLE_ONE_PER_HOOKS, ids=str)
def test_chunks(case: Case) -> None:
    deviation = checks.cached_equals_uncached(case, DynamicCache, cut=7, step=7)
    assert deviation <= case.tolerance("cache"), deviation


@pytest.mark.slow
@EVERY_CUT
@pytest.mark.parametrize("case", CACHEABLE_ONE_PER_HOOKS, ids=str)
def test_static_cache(case: Case, cut: int) -> None:
    deviation = checks.cached_equals_uncached(case, StaticCache, cut)
    assert deviation <= case.tolerance("cache"), deviation


@pytest.mark.parametrize("case", CACHEABLE_ONE_PER_HOOKS, ids=str)
def test_batches_in_a_static_cache(case: Case) -> None:
    for check in (checks.padded_decoding_equals_unpadded, checks.reordered_cache_equals_uncached):
        deviation = check(case, StaticCache)
        assert deviation <= case.tolerance(deviation.check), deviation
