"""Every check can fail: each is broken here by something that deserves it, by more than a hundred times its limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers.cache_utils import DynamicCache

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case, Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.life_cycle import differences, traces
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import NoEffect, NotExpressible

from . import controls
from .controls import Meddled, StockDynamic, Unpatched

STALE = Case("llama", controls.StaleDynamicNTK, factor=4)
BLIND = Case("llama", controls.BlindToPadding, factor=4)
PEEKING = Case("llama", controls.Peeking, factor=4)
BLIND_TO_ADAPTERS = controls.BlindToAdapters("llama", "alibi", factor=4)
ALIBI = Case("llama", "alibi", factor=4)
ROPE = Case("llama", "rope", factor=4)

SINUSOIDAL = Case("llama", "sinusoidal", factor=4)
T5 = Case("llama", "t5", factor=4)

BROKEN: dict[str, Callable[[], Deviation]] = {
    "cache, keys rotated once": lambda: checks.cached_equals_uncached(STALE, DynamicCache, TRAINED_LENGTH, step=1),
    "cache, stock dynamic": lambda: checks.cached_equals_uncached(StockDynamic(), DynamicCache, TRAINED_LENGTH, step=1),
    "beams, keys rotated once": lambda: checks.cache_can_be_reordered(STALE),
    "positions, keys counted back from the newest query": lambda: checks.cached_keys_stay_where_they_were(
        Meddled(controls.forget_positions, ALIBI)
    ),
    "mask, one that does not arrive": lambda: checks.own_masks_hold_in_a_cache(Meddled(controls.drop_own_mask, ALIBI)),
    "generation, a dropped offset": lambda: checks.padded_decoding_equals_alone(BLIND),
    "batch, a base for the longest row": lambda: checks.alone_equals_batched(STALE, "right"),
    "batch, a dropped offset": lambda: checks.alone_equals_batched(BLIND, "left"),
    "padding, a dropped offset": lambda: checks.padding_is_invisible(BLIND, "left"),
    "packed, keys counted by column": lambda: checks.packed_equals_separate(BLIND),
    "backend, a bias that eager drops": lambda: checks.backends_agree(Meddled(controls.drop_in("eager"), ALIBI)),
    "effect, an unpatched model that answers": lambda: checks.patch_changes_outputs(
        Meddled(controls.impersonate, ALIBI)
    ),
    "identity, another base": lambda: checks.nothing_moves_where_promised(Meddled(controls.rebase, ROPE)),
    "causality, a mask off by one": lambda: checks.future_is_unseen(Meddled(controls.see_one_ahead, ROPE)),
    "length, no numbers past the trained length": lambda: checks.runs_or_raises(Meddled(controls.fail_late, ROPE)),
    "unpatch, a forgotten attribute": lambda: checks.unpatch_leaves_no_trace(Meddled(controls.leave_a_note, ALIBI)),
    "twice, a patch that is accepted": lambda: checks.second_patch_is_refused(Unpatched("llama", "alibi")),
    "deepcopy, a copy that is the original": lambda: checks.copies_are_equal_and_apart(Meddled(controls.share, ALIBI)),
    "saving, a plain checkpoint": lambda: checks.saved_equals_loaded(Meddled(controls.save_plain, ALIBI)),
    "isolation, a class attribute": lambda: checks.nobody_else_is_touched(Meddled(controls.change_the_class, ALIBI)),
    "gradients, a detached table": lambda: checks.gradients_arrive(Meddled(controls.detach, T5)),
    "checkpointing, another recomputation": lambda: checks.checkpointing_changes_no_gradient(
        Meddled(controls.recompute_differently, ROPE)
    ),
    "memoryless, the longest text so far": lambda: checks.forward_passes_leave_nothing(
        Case("llama", controls.Remembering, factor=4)
    ),
    "formula, a bias that is dropped": lambda: checks.matches_definition(Meddled(controls.drop_in("sdpa"), ALIBI)),
    "formula, keys counted by column": lambda: checks.matches_definition(BLIND),
    "formula, keys rotated once": lambda: checks.matches_definition(STALE),
    "derivatives, queries without theirs": lambda: checks.gradients_match_definition(
        Meddled(controls.cut_the_gradient, T5)
    ),
    "shift, a distance that knows its place": lambda: checks.begins_anywhere(PEEKING),
    "shift, positions that do not arrive": lambda: checks.begins_anywhere(Meddled(controls.forget_where, SINUSOIDAL)),
    "distance, keys that grow": lambda: checks.equal_distances_score_alike(Meddled(controls.tilt_keys, ROPE)),
    "far, positions in bfloat16": lambda: checks.far_is_as_near(Meddled(controls.round_positions, ROPE)),
    "far, a distance that knows its place": lambda: checks.far_is_as_near(PEEKING),
    "crop, keys rotated once": lambda: checks.cropped_cache_goes_on(STALE),
    "assisted, keys rotated once": lambda: checks.helpers_choose_the_same(STALE),
    "continuous, keys rotated once": lambda: checks.continuous_batches_choose_the_same(STALE),
    "precision, a lost scale": lambda: checks.rounds_as_torch(Meddled(controls.lose_the_scale, ROPE)),
    "memory, all pairs": lambda: checks.memory_is_linear(Meddled(controls.form_all_pairs, ROPE)),
    "exported, another graph": lambda: checks.exported_equals_eager(Meddled(controls.differ_in_graphs, ROPE)),
    "scripted, another graph": lambda: checks.scripted_equals_eager(Meddled(controls.differ_in_graphs, ROPE)),
    "lengths, another graph": lambda: checks.lengths_share_a_graph(Meddled(controls.differ_in_graphs, ROPE)),
    "compiled, another graph": lambda: checks.compiled_equals_eager(Meddled(controls.differ_in_graphs, ROPE)),
    "flex, a bias that flex drops": lambda: checks.flex_agrees(Meddled(controls.drop_in("flex_attention"), ALIBI)),
    "says, zeros": lambda: checks.positions_change_outputs(Case("llama", controls.Silent, factor=4)),
    "options, one that is forgotten": lambda: checks.every_option_counts(Case("llama", controls.Deaf, factor=4)),
    "leaks, the positions of every reading": lambda: checks.forward_passes_free_memory(
        Case("llama", controls.Hoarding, factor=4)
    ),
    "long, another slope from 100 keys on": lambda: checks.hundreds_of_tokens_are_no_threshold(
        Case("llama", controls.Counting, factor=4)
    ),
    "secant, a detached table": lambda: checks.gradient_is_the_slope(Meddled(controls.detach, T5)),
    "modes, another slope": lambda: checks.training_mode_agrees(Case("llama", controls.Moody, factor=4)),
    "memoryless, everybody's seed": lambda: checks.forward_passes_leave_nothing(
        Case("llama", controls.Reseeding, factor=4)
    ),
    "far, places that come again": lambda: checks.far_is_as_near(Case("llama", controls.Periodic, factor=4)),
    "native, keys that only grow here": lambda: checks.native_export_agrees(Meddled(controls.tilt_keys, ROPE)),
    "offload, parameters sought where the model keeps them": lambda: checks.offloaded_equals_whole(
        Case("llama", controls.Grounded, factor=4)
    ),
    "configuration, a length that is read live": lambda: checks.changed_configuration_changes_nothing(
        Meddled(controls.read_live, ROPE)
    ),
    "cast, slopes in a buffer": lambda: checks.cast_and_back_keeps_tables(Case("llama", controls.Buffered, factor=4)),
    "adapters, a patch blind to them": lambda: checks.adapters_go_with_the_scheme(BLIND_TO_ADAPTERS),
}


@pytest.mark.parametrize("check", BROKEN)
def test_law_can_fail(check: str) -> None:
    gap = BROKEN[check]()
    assert gap.check == check.partition(",")[0]
    assert gap > 100 * gap.limit, gap
    assert gap.failed
    assert gap.repeat.startswith(("python -c", "hf-posenc check"))


def test_another_rotation_under_the_name_of_a_type() -> None:
    with pytest.raises(NotExpressible, match="another rotation"):
        checks.native_export_agrees(Case("llama", controls.Boasting, factor=4))


def test_every_law_has_a_control() -> None:
    uncontrolled = set(CHECKS) - {name.partition(",")[0] for name in BROKEN}
    assert not uncontrolled


def test_no_number_breaks_every_law() -> None:
    gap = ROPE.gap("cache", float("nan"), "nowhere")
    assert gap.failed
    assert not gap <= gap.limit


def test_patch_without_effect_is_refused_and_undone() -> None:
    model = tiny_model("llama")
    tokens = random_tokens(model, TRAINED_LENGTH)
    before = traces(model, tokens)
    with pytest.raises(NoEffect, match="nothing moved"):
        Case(model, controls.Nothing, factor=4).apply(model)
    assert differences(before, traces(model, tokens)) == (0.0, "nothing")


def test_patch_that_gives_no_numbers_is_refused() -> None:
    model = tiny_model("llama")
    tokens = random_tokens(model, 8)
    before = forward(model, tokens)
    with pytest.raises(NoEffect, match="not finite"):
        Case(model, controls.Poisoned, factor=4).apply(model)
    assert (forward(model, tokens) == before).all()
