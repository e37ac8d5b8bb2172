"""A text in cached chunks equals one forward pass, for several lengths of the first chunk and both kinds of caches."""

from __future__ import annotations

import pytest
from transformers.cache_utils import StaticCache

from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from .case_lists import CACHEABLE_ONE_PER_HOOKS, QUICK

CUTS = {
    "one token": 1,
    "just inside": TRAINED_LENGTH - 1,
    "just past": TRAINED_LENGTH + 1,
    "twice": 2 * TRAINED_LENGTH,
}


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("case", CACHEABLE_ONE_PER_HOOKS, ids=str)
def test_decoding_after_a_prefill(case: Case, cut: int) -> None:
    """Token by token after the first chunk."""
    deviation = CHECKS["cache"](case, cut=cut, step=1)
    assert deviation <= case.tolerance("cache"), deviation


@pytest.mark.parametrize("case", [case for case in CACHEABLE_ONE_PER_HOOKS if case in QUICK], ids=str)
def test_a_static_cache(case: Case) -> None:
    for deviation in (
        CHECKS["cache"](case, cache=StaticCache, cut=7, step=7),
        CHECKS["padded_decoding"](case, cache=StaticCache),
        CHECKS["cache_reorder"](case, cache=StaticCache),
    ):
        assert deviation <= case.tolerance(deviation.check), deviation
