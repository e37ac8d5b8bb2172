"""Every law can fail: each is broken here by something that deserves it, by more than a hundred times its limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers.cache_utils import DynamicCache

from hf_posenc import laws
from hf_posenc.errors import NoEffect
from hf_posenc.laws import LAWS, Gap, Pair
from hf_posenc.laws.hosts import TRAINED, host
from hf_posenc.laws.lives import differences, traces
from hf_posenc.laws.reading import read, text

from . import controls
from .controls import Meddled, StockDynamic, Unpatched

STALE = Pair("llama", controls.StaleDynamicNTK, factor=4)
BLIND = Pair("llama", controls.BlindToPadding, factor=4)
ALIBI = Pair("llama", "alibi", factor=4)
ROPE = Pair("llama", "rope", factor=4)

T5 = Pair("llama", "t5", factor=4)

BROKEN: dict[str, Callable[[], Gap]] = {
    "cache, keys rotated once": lambda: laws.cached_equals_uncached(STALE, DynamicCache, TRAINED, step=1),
    "cache, stock dynamic": lambda: laws.cached_equals_uncached(StockDynamic(), DynamicCache, TRAINED, step=1),
    "beams, keys rotated once": lambda: laws.cache_can_be_reordered(STALE),
    "generation, a dropped offset": lambda: laws.padded_decoding_equals_alone(BLIND),
    "batch, a base for the longest row": lambda: laws.alone_equals_batched(STALE, "right"),
    "batch, a dropped offset": lambda: laws.alone_equals_batched(BLIND, "left"),
    "padding, a dropped offset": lambda: laws.padding_is_invisible(BLIND, "left"),
    "packed, keys counted by column": lambda: laws.packed_equals_separate(BLIND),
    "backend, a bias that eager drops": lambda: laws.backends_agree(Meddled(controls.drop_in_eager, ALIBI)),
    "effect, an unpatched model that answers": lambda: laws.patch_shows(Meddled(controls.impersonate, ALIBI)),
    "identity, another base": lambda: laws.nothing_moves_where_promised(Meddled(controls.rebase, ROPE)),
    "causality, a mask off by one": lambda: laws.future_is_unseen(Meddled(controls.see_one_ahead, ROPE)),
    "length, no numbers past the trained length": lambda: laws.runs_or_says_why(Meddled(controls.fail_late, ROPE)),
    "unpatch, a forgotten attribute": lambda: laws.unpatch_leaves_no_trace(Meddled(controls.leave_a_note, ALIBI)),
    "twice, a patch that is accepted": lambda: laws.second_patch_is_refused(Unpatched("llama", "alibi")),
    "deepcopy, a copy that is the original": lambda: laws.copies_are_equal_and_apart(Meddled(controls.share, ALIBI)),
    "saving, a plain checkpoint": lambda: laws.saved_equals_loaded(Meddled(controls.save_plain, ALIBI)),
    "isolation, a class attribute": lambda: laws.nobody_else_is_touched(Meddled(controls.change_the_class, ALIBI)),
    "gradients, a detached table": lambda: laws.gradients_arrive(Meddled(controls.detach, T5)),
    "checkpointing, another recomputation": lambda: laws.checkpointing_changes_no_gradient(
        Meddled(controls.recompute_differently, ROPE)
    ),
}


@pytest.mark.parametrize("law", BROKEN)
def test_law_can_fail(law: str) -> None:
    gap = BROKEN[law]()
    assert gap.law == law.partition(",")[0]
    assert gap > 100 * gap.limit, gap
    assert gap.broken
    assert gap.repeat.startswith(("python -c", "hf-posenc check"))


def test_every_law_has_a_control() -> None:
    uncontrolled = set(LAWS) - {name.partition(",")[0] for name in BROKEN}
    assert not uncontrolled


def test_no_number_breaks_every_law() -> None:
    gap = ROPE.gap("cache", float("nan"), "nowhere")
    assert gap.broken
    assert not gap <= gap.limit


def test_patch_without_effect_is_refused_and_undone() -> None:
    model = host("llama")
    tokens = text(model, TRAINED)
    before = traces(model, tokens)
    with pytest.raises(NoEffect, match="nothing moved"):
        Pair(model, controls.Nothing, factor=4).apply(model)
    assert differences(before, traces(model, tokens)) == (0.0, "nothing")


def test_patch_that_gives_no_numbers_is_refused() -> None:
    model = host("llama")
    tokens = text(model, 8)
    before = read(model, tokens)
    with pytest.raises(NoEffect, match="not finite"):
        Pair(model, controls.Poisoned, factor=4).apply(model)
    assert (read(model, tokens) == before).all()
