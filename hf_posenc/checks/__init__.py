"""Checks of patched models as library functions: each is ``check(case) -> Deviation``.

The test suite asserts all of them for every registered scheme on every tiny model, `check_scheme` and
``hf-posenc check`` run them on a user's own model, and the tests of a third-party scheme need four lines::

    @pytest.mark.parametrize("case", checks.cases("my_scheme"), ids=str)
    @pytest.mark.parametrize("check", checks.CHECKS)
    def test_scheme(check, case):
        checks.assert_passes(check, case)
"""

from __future__ import annotations

from hf_posenc.checks.all_cases import Refusal, cases, longest_case, refusals
from hf_posenc.checks.backends import backends_agree
from hf_posenc.checks.batching import packed_equals_separate, padding_has_no_effect, single_equals_batched
from hf_posenc.checks.cache import (
    cached_equals_uncached,
    custom_mask_holds_in_cache,
    long_text_cached_equals_uncached,
    padded_decoding_equals_unpadded,
    position_ids_hold_in_cache,
    reordered_cache_equals_uncached,
)
from hf_posenc.checks.case import Case
from hf_posenc.checks.checkpoint import saved_equals_loaded
from hf_posenc.checks.compile import compiled_equals_eager, flex_agrees
from hf_posenc.checks.config_edits import config_edits_have_no_effect
from hf_posenc.checks.continuous_batching import continuous_batching_equals_forward
from hf_posenc.checks.definition import gradients_match_definition, matches_definition
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.dtype_casts import dtype_round_trip_keeps_tables
from hf_posenc.checks.effect import (
    forward_is_stateless,
    future_has_no_effect,
    patch_changes_outputs,
    positions_change_outputs,
    training_mode_equals_evaluation,
    unchanged_where_promised,
)
from hf_posenc.checks.far_positions import far_positions_match_definition
from hf_posenc.checks.finite_differences import gradients_match_finite_differences
from hf_posenc.checks.generation import cropped_cache_equals_uncached, generate_chooses_best_tokens
from hf_posenc.checks.graph_export import exported_equals_eager, lengths_share_graphs, traced_equals_eager
from hf_posenc.checks.leaks import forward_leaks_no_objects
from hf_posenc.checks.lengths import runs_or_raises
from hf_posenc.checks.life_cycle import (
    copies_are_equal_and_independent,
    other_models_are_unchanged,
    second_patch_is_refused,
    unpatch_restores_everything,
)
from hf_posenc.checks.memory_growth import memory_is_linear
from hf_posenc.checks.native_export import native_export_equals_patched
from hf_posenc.checks.offload import offloaded_equals_resident
from hf_posenc.checks.options import every_option_has_effect
from hf_posenc.checks.peft import lora_works_with_scheme
from hf_posenc.checks.precision import rounding_matches_torch
from hf_posenc.checks.registry import (
    CHECKS,
    Check,
    applicable_checks,
    assert_passes,
)
from hf_posenc.checks.run import check_scheme
from hf_posenc.checks.shift import (
    equal_distances_score_equally,
    shifted_positions_match_claim,
)
from hf_posenc.checks.tolerances import KNOWN_DEVIATIONS, TOLERANCES, KnownDeviation
from hf_posenc.checks.training import checkpointing_changes_no_gradient, learned_parameters_get_gradients

__all__ = [
    "CHECKS",
    "KNOWN_DEVIATIONS",
    "TOLERANCES",
    "Case",
    "Check",
    "Deviation",
    "KnownDeviation",
    "Refusal",
    "applicable_checks",
    "assert_passes",
    "backends_agree",
    "cached_equals_uncached",
    "cases",
    "check_scheme",
    "checkpointing_changes_no_gradient",
    "compiled_equals_eager",
    "config_edits_have_no_effect",
    "continuous_batching_equals_forward",
    "copies_are_equal_and_independent",
    "cropped_cache_equals_uncached",
    "custom_mask_holds_in_cache",
    "dtype_round_trip_keeps_tables",
    "equal_distances_score_equally",
    "every_option_has_effect",
    "exported_equals_eager",
    "far_positions_match_definition",
    "flex_agrees",
    "forward_is_stateless",
    "forward_leaks_no_objects",
    "future_has_no_effect",
    "generate_chooses_best_tokens",
    "gradients_match_definition",
    "gradients_match_finite_differences",
    "learned_parameters_get_gradients",
    "lengths_share_graphs",
    "long_text_cached_equals_uncached",
    "longest_case",
    "lora_works_with_scheme",
    "matches_definition",
    "memory_is_linear",
    "native_export_equals_patched",
    "offloaded_equals_resident",
    "other_models_are_unchanged",
    "packed_equals_separate",
    "padded_decoding_equals_unpadded",
    "padding_has_no_effect",
    "patch_changes_outputs",
    "position_ids_hold_in_cache",
    "positions_change_outputs",
    "refusals",
    "reordered_cache_equals_uncached",
    "rounding_matches_torch",
    "runs_or_raises",
    "saved_equals_loaded",
    "second_patch_is_refused",
    "shifted_positions_match_claim",
    "single_equals_batched",
    "traced_equals_eager",
    "training_mode_equals_evaluation",
    "unchanged_where_promised",
    "unpatch_restores_everything",
]
