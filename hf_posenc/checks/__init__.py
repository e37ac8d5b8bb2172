"""The contract as library functions: every check is ``check(pair) -> Gap``.

The test suite asserts them over all registered schemes and all models, ``hf-posenc check`` runs them on a user's own
model, and a third party's scheme gets all of them for one line::

    @pytest.mark.parametrize("pair", checks.pairs("my_scheme"), ids=str)
    @pytest.mark.parametrize("check", checks.LAWS)
    def test_contract(pair, check):
        checks.assert_holds(check, pair)
"""

from __future__ import annotations

from hf_posenc.checks.backends import backends_agree
from hf_posenc.checks.batching import alone_equals_batched, packed_equals_separate, padding_is_invisible
from hf_posenc.checks.cache import (
    cache_can_be_reordered,
    cached_equals_uncached,
    cached_keys_stay_where_they_were,
    hundreds_of_tokens_are_no_threshold,
    own_masks_hold_in_a_cache,
    padded_decoding_equals_alone,
)
from hf_posenc.checks.case import (
    Case,
    Refusal,
    cases,
    longest_case,
    refusals,
)
from hf_posenc.checks.checkpoint import saved_equals_loaded
from hf_posenc.checks.compile import compiled_equals_eager, flex_agrees
from hf_posenc.checks.config_edits import changed_configuration_changes_nothing
from hf_posenc.checks.continuous_batching import continuous_batches_choose_the_same
from hf_posenc.checks.definition import gradients_match_definition, matches_definition
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.dtype_casts import cast_and_back_keeps_tables
from hf_posenc.checks.effect import (
    forward_passes_leave_nothing,
    future_is_unseen,
    nothing_moves_where_promised,
    patch_changes_outputs,
    positions_change_outputs,
    training_mode_agrees,
)
from hf_posenc.checks.export import native_export_agrees
from hf_posenc.checks.generation import cropped_cache_goes_on, helpers_choose_the_same
from hf_posenc.checks.gradients import gradient_is_the_slope
from hf_posenc.checks.graph_export import exported_equals_eager, lengths_share_a_graph, scripted_equals_eager
from hf_posenc.checks.leaks import forward_passes_free_memory
from hf_posenc.checks.lengths import runs_or_raises
from hf_posenc.checks.life_cycle import (
    copies_are_equal_and_apart,
    nobody_else_is_touched,
    second_patch_is_refused,
    unpatch_leaves_no_trace,
)
from hf_posenc.checks.memory_growth import memory_is_linear
from hf_posenc.checks.offload import offloaded_equals_whole
from hf_posenc.checks.options import every_option_counts
from hf_posenc.checks.peft import adapters_go_with_the_scheme
from hf_posenc.checks.precision import rounds_as_torch
from hf_posenc.checks.registry import (
    CHECKS,
    Check,
    applicable_checks,
    assert_passes,
)
from hf_posenc.checks.run import check_scheme
from hf_posenc.checks.tolerances import KNOWN_LIMITS, TOLERANCES, KnownLimit
from hf_posenc.checks.training import checkpointing_changes_no_gradient, gradients_arrive
from hf_posenc.checks.translation import begins_anywhere, equal_distances_score_alike, far_is_as_near

__all__ = [
    "CHECKS",
    "KNOWN_LIMITS",
    "TOLERANCES",
    "Case",
    "Check",
    "Deviation",
    "KnownLimit",
    "Refusal",
    "adapters_go_with_the_scheme",
    "alone_equals_batched",
    "applicable_checks",
    "assert_passes",
    "backends_agree",
    "begins_anywhere",
    "cache_can_be_reordered",
    "cached_equals_uncached",
    "cached_keys_stay_where_they_were",
    "cases",
    "cast_and_back_keeps_tables",
    "changed_configuration_changes_nothing",
    "check_scheme",
    "checkpointing_changes_no_gradient",
    "compiled_equals_eager",
    "continuous_batches_choose_the_same",
    "copies_are_equal_and_apart",
    "cropped_cache_goes_on",
    "equal_distances_score_alike",
    "every_option_counts",
    "exported_equals_eager",
    "far_is_as_near",
    "flex_agrees",
    "forward_passes_free_memory",
    "forward_passes_leave_nothing",
    "future_is_unseen",
    "gradient_is_the_slope",
    "gradients_arrive",
    "gradients_match_definition",
    "helpers_choose_the_same",
    "hundreds_of_tokens_are_no_threshold",
    "lengths_share_a_graph",
    "longest_case",
    "matches_definition",
    "memory_is_linear",
    "native_export_agrees",
    "nobody_else_is_touched",
    "nothing_moves_where_promised",
    "offloaded_equals_whole",
    "own_masks_hold_in_a_cache",
    "packed_equals_separate",
    "padded_decoding_equals_alone",
    "padding_is_invisible",
    "patch_changes_outputs",
    "positions_change_outputs",
    "refusals",
    "rounds_as_torch",
    "runs_or_raises",
    "saved_equals_loaded",
    "scripted_equals_eager",
    "second_patch_is_refused",
    "training_mode_agrees",
    "unpatch_leaves_no_trace",
]
