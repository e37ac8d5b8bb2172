"""The contract as library functions: every law is ``law(pair) -> Gap``.

The test suite asserts them over all registered schemes and all models, ``hf-posenc check`` runs them on a user's own
model, and a third party's scheme gets all of them for one line::

    @pytest.mark.parametrize("pair", laws.pairs("my_scheme"), ids=str)
    @pytest.mark.parametrize("law", laws.LAWS)
    def test_contract(pair, law):
        laws.assert_holds(law, pair)
"""

from __future__ import annotations

from hf_posenc.laws.backends import backends_agree
from hf_posenc.laws.batches import alone_equals_batched, packed_equals_separate, padding_is_invisible
from hf_posenc.laws.book import LAWS, Law, applicable, assert_holds
from hf_posenc.laws.caches import cache_can_be_reordered, cached_equals_uncached, padded_decoding_equals_alone
from hf_posenc.laws.checking import check
from hf_posenc.laws.gap import Gap
from hf_posenc.laws.lengths import runs_or_says_why
from hf_posenc.laws.limits import KNOWN_LIMITS, LIMITS, KnownLimit
from hf_posenc.laws.lives import (
    copies_are_equal_and_apart,
    nobody_else_is_touched,
    second_patch_is_refused,
    unpatch_leaves_no_trace,
)
from hf_posenc.laws.outputs import future_is_unseen, nothing_moves_where_promised, patch_shows
from hf_posenc.laws.pair import Pair, Refusal, pairs, refusals, widest
from hf_posenc.laws.saving import saved_equals_loaded
from hf_posenc.laws.training import checkpointing_changes_no_gradient, gradients_arrive

__all__ = [
    "KNOWN_LIMITS",
    "LAWS",
    "LIMITS",
    "Gap",
    "KnownLimit",
    "Law",
    "Pair",
    "Refusal",
    "alone_equals_batched",
    "applicable",
    "assert_holds",
    "backends_agree",
    "cache_can_be_reordered",
    "cached_equals_uncached",
    "check",
    "checkpointing_changes_no_gradient",
    "copies_are_equal_and_apart",
    "future_is_unseen",
    "gradients_arrive",
    "nobody_else_is_touched",
    "nothing_moves_where_promised",
    "packed_equals_separate",
    "padded_decoding_equals_alone",
    "padding_is_invisible",
    "pairs",
    "patch_shows",
    "refusals",
    "runs_or_says_why",
    "saved_equals_loaded",
    "second_patch_is_refused",
    "unpatch_leaves_no_trace",
    "widest",
]
