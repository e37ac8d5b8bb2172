"""Every check can fail: each negative control exceeds the tolerance by more than a factor of 100."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers.cache_utils import DynamicCache

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case, Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import NoEffect, NotExpressible
from hf_posenc.patches.llama import PatchedLlamaAttention
from hf_posenc.patching import proof

from . import wrong_patches, wrong_schemes
from .wrong_patches import Modified, NoPatch, TransformersDynamicNTK

STALE = Case("llama", wrong_schemes.StaleDynamicNTK, factor=4)
BY_COLUMN = Case("llama", wrong_schemes.RotatesByColumn, factor=4)
BY_START = Case("llama", wrong_schemes.BiasByStart, factor=4)
IGNORES_PEFT = wrong_patches.IgnoresPeftModels("llama", "alibi", factor=4)
ALIBI = Case("llama", "alibi", factor=4)
ROPE = Case("llama", "rope", factor=4)

SINUSOIDAL = Case("llama", "sinusoidal", factor=4)
T5 = Case("llama", "t5", factor=4)

CONTROLS: dict[str, Callable[[], Deviation]] = {
    "cache, keys rotated once": lambda: checks.cached_equals_uncached(STALE, DynamicCache, TRAINED_LENGTH, step=1),
    "cache, dynamic NTK of transformers": lambda: checks.cached_equals_uncached(
        TransformersDynamicNTK(), DynamicCache, TRAINED_LENGTH, step=1
    ),
    "cache_reorder, keys rotated once": lambda: checks.reordered_cache_equals_uncached(STALE),
    "position_ids, keys counted back from the newest query": lambda: checks.position_ids_hold_in_cache(
        Modified(wrong_patches.forget_cached_positions, ALIBI)
    ),
    "custom_mask, ignored with a cache": lambda: checks.custom_mask_holds_in_cache(
        Modified(wrong_patches.drop_mask_with_cache, ALIBI)
    ),
    "padded_decoding, keys rotated by column": lambda: checks.padded_decoding_equals_unpadded(BY_COLUMN),
    "batch, a base by the longest row": lambda: checks.single_equals_batched(STALE, "right"),
    "batch, keys rotated by column": lambda: checks.single_equals_batched(BY_COLUMN, "left"),
    "padding, keys rotated by column": lambda: checks.padding_has_no_effect(BY_COLUMN, "left"),
    "packed, keys rotated by column": lambda: checks.packed_equals_separate(BY_COLUMN),
    "backend, a bias that eager ignores": lambda: checks.backends_agree(
        Modified(wrong_patches.drop_bias_on("eager"), ALIBI)
    ),
    "effect, an unpatched forward": lambda: checks.patch_changes_outputs(
        Modified(wrong_patches.forward_unpatched, ALIBI)
    ),
    "identity, another base": lambda: checks.unchanged_where_promised(Modified(wrong_patches.change_base, ROPE)),
    "causality, a mask off by one": lambda: checks.future_has_no_effect(
        Modified(wrong_patches.attend_one_token_ahead, ROPE)
    ),
    "length, NaN past the trained length": lambda: checks.runs_or_raises(
        Modified(wrong_patches.nan_past_trained_length, ROPE)
    ),
    "unpatch, an additional attribute": lambda: checks.unpatch_restores_everything(
        Modified(wrong_patches.add_attribute, ALIBI)
    ),
    "second_patch, a patch that is accepted": lambda: checks.second_patch_is_refused(NoPatch("llama", "alibi")),
    "deepcopy, a copy that is the original": lambda: checks.copies_are_equal_and_independent(
        Modified(wrong_patches.return_self_as_copy, ALIBI)
    ),
    "saving, a checkpoint without the scheme": lambda: checks.saved_equals_loaded(
        Modified(wrong_patches.save_without_scheme, ALIBI)
    ),
    "isolation, a class attribute": lambda: checks.other_models_are_unchanged(
        Modified(wrong_patches.change_class, ALIBI)
    ),
    "gradients, a detached table": lambda: checks.learned_parameters_get_gradients(
        Modified(wrong_patches.detach_bias, T5)
    ),
    "gradient_checkpointing, a different recomputation": lambda: checks.checkpointing_changes_no_gradient(
        Modified(wrong_patches.recompute_differently, ROPE)
    ),
    "stateless, a slope by the longest text": lambda: checks.forward_is_stateless(
        Case("llama", wrong_schemes.SlopeByLongestText, factor=4)
    ),
    "formula, a bias that is ignored": lambda: checks.matches_definition(
        Modified(wrong_patches.drop_bias_on("sdpa"), ALIBI)
    ),
    "formula, keys rotated by column": lambda: checks.matches_definition(BY_COLUMN),
    "formula, keys rotated once": lambda: checks.matches_definition(STALE),
    "formula_gradients, detached queries": lambda: checks.gradients_match_definition(
        Modified(wrong_patches.detach_queries, T5)
    ),
    "shift, a slope by the first position": lambda: checks.shifted_positions_match_claim(BY_START),
    "shift, position_ids that are ignored": lambda: checks.shifted_positions_match_claim(
        Modified(wrong_patches.drop_position_ids, SINUSOIDAL)
    ),
    "distance, keys scaled by column": lambda: checks.equal_distances_score_equally(
        Modified(wrong_patches.scale_keys_by_column, ROPE)
    ),
    "far_positions, positions in bfloat16": lambda: checks.far_positions_match_definition(
        Modified(wrong_patches.round_positions, ROPE)
    ),
    "far_positions, a slope by the first position": lambda: checks.far_positions_match_definition(BY_START),
    "cache_crop, keys rotated once": lambda: checks.cropped_cache_equals_uncached(STALE),
    "generate, keys rotated once": lambda: checks.generate_chooses_best_tokens(STALE),
    "continuous_batching, keys rotated once": lambda: checks.continuous_batching_equals_forward(STALE),
    "precision, rounded values": lambda: checks.rounding_matches_torch(Modified(wrong_patches.round_values, ROPE)),
    "memory_growth, a square tensor": lambda: checks.memory_is_linear(Modified(wrong_patches.allocate_square, ROPE)),
    "torch_export, another graph": lambda: checks.exported_equals_eager(Modified(wrong_patches.differ_in_graphs, ROPE)),
    "jit_trace, another graph": lambda: checks.traced_equals_eager(Modified(wrong_patches.differ_in_graphs, ROPE)),
    "recompilation, another graph": lambda: checks.lengths_share_graphs(Modified(wrong_patches.differ_in_graphs, ROPE)),
    "torch_compile, another graph": lambda: checks.compiled_equals_eager(
        Modified(wrong_patches.differ_in_graphs, ROPE)
    ),
    "flex_attention, a bias that flex ignores": lambda: checks.flex_agrees(
        Modified(wrong_patches.drop_bias_on("flex_attention"), ALIBI)
    ),
    "position_effect, a bias of zeros": lambda: checks.positions_change_outputs(
        Case("llama", wrong_schemes.RemovesPositions, factor=4)
    ),
    "options, one that is ignored": lambda: checks.every_option_has_effect(
        Case("llama", wrong_schemes.IgnoresOption, factor=4)
    ),
    "memory_leaks, positions of every forward pass": lambda: checks.forward_leaks_no_objects(
        Case("llama", wrong_schemes.KeepsPositions, factor=4)
    ),
    "long_text, another slope from 100 keys on": lambda: checks.long_text_cached_equals_uncached(
        Case("llama", wrong_schemes.SlopeByKeyCount, factor=4)
    ),
    "finite_differences, a detached table": lambda: checks.gradients_match_finite_differences(
        Modified(wrong_patches.detach_bias, T5)
    ),
    "training_mode, another slope": lambda: checks.training_mode_equals_evaluation(
        Case("llama", wrong_schemes.SlopeByMode, factor=4)
    ),
    "stateless, torch's seed": lambda: checks.forward_is_stateless(Case("llama", wrong_schemes.SeedsTorch, factor=4)),
    "far_positions, periodic embeddings": lambda: checks.far_positions_match_definition(
        Case("llama", wrong_schemes.PeriodicEmbedding, factor=4)
    ),
    "native_export, keys scaled by column": lambda: checks.native_export_equals_patched(
        Modified(wrong_patches.scale_keys_by_column, ROPE)
    ),
    "offload, a meta tensor": lambda: checks.offloaded_equals_resident(
        Case("llama", wrong_schemes.ReadsOffloadedParameter, factor=4)
    ),
    "configuration, read in forward": lambda: checks.config_edits_have_no_effect(
        Modified(wrong_patches.read_config_in_forward, ROPE)
    ),
    "dtype_cast, a slope in a buffer": lambda: checks.dtype_round_trip_keeps_tables(
        Case("llama", wrong_schemes.SlopeInBuffer, factor=4)
    ),
    "lora, a patch that ignores PEFT models": lambda: checks.lora_works_with_scheme(IGNORES_PEFT),
}


@pytest.mark.parametrize("check", CONTROLS)
def test_check_fails(check: str) -> None:
    deviation = CONTROLS[check]()
    assert deviation.check == check.partition(",")[0]
    assert deviation > 100 * deviation.tolerance, deviation
    assert deviation.failed
    assert deviation.command.startswith(("python -c", "hf-posenc check"))


def test_export_refuses_another_rotation_than_the_named_type() -> None:
    with pytest.raises(NotExpressible, match="another rotation"):
        checks.native_export_equals_patched(Case("llama", wrong_schemes.WrongNativeType, factor=4))


def test_every_check_has_a_control() -> None:
    without_control = set(CHECKS) - {name.partition(",")[0] for name in CONTROLS}
    assert not without_control


def test_nan_fails() -> None:
    deviation = ROPE.deviation("cache", float("nan"), "nowhere")
    assert deviation.failed
    assert not deviation <= deviation.tolerance


def test_patch_without_effect_is_refused_and_rolled_back() -> None:
    model = tiny_model("llama")
    tokens = random_tokens(model, TRAINED_LENGTH)
    before = snapshot(model, tokens)
    with pytest.raises(NoEffect, match="nothing moved"):
        Case(model, wrong_schemes.ZeroBias, factor=4).apply(model)
    assert differences(before, snapshot(model, tokens)) == (0.0, "nothing")


def test_a_score_factor_of_the_patched_class_alone_is_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof multiplies scores before and after the patch, so it must not use a name that only one of them has."""
    factor = property(lambda self: vars(self)["scaling"], lambda self, value: vars(self).update(scaling=value))
    monkeypatch.setattr(PatchedLlamaAttention, "late_factor", factor, raising=False)
    monkeypatch.setattr(proof, "SCORE_FACTORS", ("late_factor",))
    model = tiny_model("llama")
    with pytest.raises(NoEffect, match="nothing moved"):
        Case(model, wrong_schemes.ZeroBias, factor=4).apply(model)


def test_patch_with_nan_outputs_is_refused() -> None:
    model = tiny_model("llama")
    tokens = random_tokens(model, 8)
    before = forward(model, tokens)
    with pytest.raises(NoEffect, match="not finite"):
        Case(model, wrong_schemes.NaNScale, factor=4).apply(model)
    assert (forward(model, tokens) == before).all()
