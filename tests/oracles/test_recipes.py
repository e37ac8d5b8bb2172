"""Training recipes: the positions they draw, which embeddings, rotations and biases of whole models all use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import describe, patch_model, scheme_of
from hf_posenc.errors import FractionalPosition, NeedsWholeText, OptionOutOfRange, PositionOutOfTable, SchemeNotDefined
from hf_posenc.schemes.recipes.pose import PoSE
from hf_posenc.schemes.recipes.randpos import RandPos
from hf_posenc.schemes.recipes.recipe import Recipe
from hf_posenc.schemes.recipes.shape import CAPE, SHAPE

from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED, WIDTH
from .naive import Positions

TARGET = 8 * TRAINED
DRAWS = 4000
WIDE = models.geometry(target=TARGET)


def in_steps(length: int = TRAINED, rows: int = 1) -> Tensor:
    return torch.arange(length).expand(rows, length)


def moved(recipe: Recipe, positions: Tensor, *, training: bool = True, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return recipe.reposition(positions, training=training)


@pytest.mark.parametrize("recipe", [RandPos(WIDE), PoSE(WIDE), PoSE(WIDE, chunks=5), SHAPE(WIDE), CAPE(WIDE)], ids=repr)
def test_order_range_and_seed(recipe: Recipe) -> None:
    drawn = moved(recipe, in_steps(rows=DRAWS))
    assert (drawn.diff() > 0).all()
    assert torch.equal(drawn, moved(recipe, in_steps(rows=DRAWS)))
    assert not torch.equal(drawn, moved(recipe, in_steps(rows=DRAWS), seed=1))
    assert len(drawn.unique(dim=0)) > 0.9 * (TARGET - TRAINED)  # rows are drawn one by one
    if not isinstance(recipe, CAPE):
        assert not drawn.is_floating_point()
        assert (drawn.min(), drawn.max()) == (0, TARGET - 1)


@pytest.mark.parametrize("recipe", [PoSE(WIDE), SHAPE(WIDE), CAPE(WIDE)], ids=repr)
def test_positions_are_unchanged_outside_training(recipe: Recipe) -> None:
    positions = in_steps()
    assert moved(recipe, positions, training=False) is positions
    assert recipe.unchanged_below == TARGET


def test_random_positions_are_a_draw_without_replacement() -> None:
    """The k-th of L sorted draws from N lies at (k + 1) (N + 1) / (L + 1) − 1 on average; any place is as likely."""
    drawn = moved(RandPos(WIDE), in_steps(rows=DRAWS))
    expected = torch.arange(1, TRAINED + 1) * (TARGET + 1) / (TRAINED + 1) - 1
    assert (drawn.double().mean(0) - expected).abs().max() < 2.5  # deviation of one draw ≤ 22, of the mean ≤ 0.35
    chosen = drawn.flatten().bincount(minlength=TARGET) / DRAWS
    assert (chosen - TRAINED / TARGET).abs().max() < 0.03  # six deviations of a share of 1/8 in 4000 draws
    whole = moved(RandPos(WIDE), in_steps(TARGET))
    assert torch.equal(whole, in_steps(TARGET))  # as many tokens as places: only one draw there is


def test_random_positions_go_by_the_length_of_each_text() -> None:
    """Padded rows draw for their real tokens; a short text in a batch with a long one spreads as far as alone."""
    short, long = torch.arange(4).clamp(max=1), torch.arange(4)
    drawn = moved(RandPos(WIDE), torch.stack((short, long)).repeat(DRAWS, 1))
    assert torch.equal(drawn[::2, 1], drawn[::2, 3])  # the pads stand where the last token stands
    assert abs(drawn[::2, 1].double().mean() - (2 * (TARGET + 1) / 3 - 1)) < 5
    assert abs(drawn[1::2, 1].double().mean() - (2 * (TARGET + 1) / 5 - 1)) < 5


def test_even_positions() -> None:
    even = RandPos(WIDE, test="even")
    rows = torch.stack((torch.arange(4), torch.tensor([0, 0, 1, 2])))
    drawn = even.reposition(rows, training=False)
    last = TARGET - 1
    assert drawn[0].tolist() == [0, last // 3, 2 * last // 3, last]
    assert drawn[1, 1:].tolist() == [0, last // 2, last]
    assert torch.equal(even.reposition(in_steps(TARGET), training=False), in_steps(TARGET))
    assert even.reposition(torch.zeros(1, 1, dtype=torch.long), training=False).tolist() == [[0]]
    assert not torch.equal(moved(even, in_steps()), even.reposition(in_steps(), training=False))
    for training in (True, False):
        with pytest.raises(PositionOutOfTable, match=f"Position {TARGET} is past the {TARGET} positions"):
            even.reposition(in_steps(TARGET + 1), training=training)


@pytest.mark.parametrize("length", [1, 2, 31, TRAINED])
def test_chunks_as_released(length: int) -> None:
    """The first of two chunks ends by ⌈L / 2⌉, the second skips up to L' − L, both uniformly; inside, steps of one."""
    drawn = moved(PoSE(WIDE), in_steps(length, DRAWS))
    assert not drawn[:, 0].any()
    jumps = drawn.diff() - 1
    assert ((jumps > 0).sum(-1) <= 1).all()
    skips = drawn[:, -1] - (length - 1)
    assert int(skips.max()) <= TARGET - length
    if length == TRAINED:
        assert abs(skips.double().mean() - (TARGET - length) / 2) < 5
        cuts = 1 + jumps[skips > 0].argmax(-1)
        counts = cuts.bincount()
        assert (cuts.min(), cuts.max()) == (1, TRAINED // 2)
        assert counts[1:].min() > 0.6 * counts[1:].max()
        assert torch.equal(moved(PoSE(models.geometry()), in_steps(length)), in_steps(length))  # nowhere to skip to


def test_chunks_keep_their_order() -> None:
    drawn = moved(PoSE(WIDE, chunks=4), in_steps(rows=DRAWS))
    jumps = drawn.diff() - 1
    assert (jumps >= 0).all()
    assert int((jumps > 0).sum(-1).max()) == 3
    for part in range(3):  # each cut in its own quarter
        assert (jumps[:, part * TRAINED // 4 : (part + 1) * TRAINED // 4] > 0).sum(-1).max() == 1


def test_shifts() -> None:
    shifts = moved(SHAPE(WIDE), in_steps(rows=DRAWS)) - in_steps()
    assert (shifts == shifts[:, :1]).all()
    assert (shifts.min(), shifts.max()) == (0, TARGET - TRAINED)
    chosen = moved(SHAPE(WIDE, max_shift=7), in_steps(rows=DRAWS)) - in_steps()
    assert sorted(chosen.unique().tolist()) == list(range(8))


def test_cape_in_its_three_parts() -> None:
    still = {"max_shift": 0.0, "jitter": 0.0, "log_scale": 0.0}
    assert torch.equal(moved(CAPE(WIDE, **still), in_steps()), in_steps().float())
    shifted = moved(CAPE(WIDE, **still | {"max_shift": 3.0}), in_steps(rows=DRAWS)) - in_steps()
    assert (shifted - shifted[:, :1]).abs().max() < 1e-5
    assert 2.9 < shifted.max() <= 3 + 1e-5
    assert -3 - 1e-5 <= shifted.min() < -2.9
    jittered = moved(CAPE(WIDE, **still | {"jitter": 0.5}), in_steps(rows=DRAWS)) - in_steps()
    assert 0.49 < jittered.abs().max() <= 0.5 + 1e-5
    assert jittered.std(-1).min() > 0.1
    stretched = moved(CAPE(WIDE, **still | {"log_scale": 0.7}), in_steps(rows=DRAWS))[:, 1:] / in_steps()[:, 1:]
    assert (stretched / stretched[:, :1] - 1).abs().max() < 1e-5
    assert 0.69 < stretched.log().abs().max() <= 0.7 + 1e-5
    stretch = moved(CAPE(WIDE, max_shift=0.0, jitter=0.0), in_steps(rows=DRAWS))[:, -1] / (TRAINED - 1)
    assert 0.09 < stretch.log().abs().max() <= 0.1 + 1e-5, "by default a tenth at most"
    with pytest.raises(OptionOutOfRange, match="'jitter'"):  # would change the order
        patch_model(models.llama(), "cape", jitter=0.6)


def test_padding_does_not_change_training_positions() -> None:
    """A row of a padded batch stands where its own draw puts it: within a chunk, in steps of one real token."""
    drawn = moved(PoSE(WIDE), torch.tensor([[0, 0, 0, 1, 2, 3]] * DRAWS))[:, 2:]
    assert (drawn[:, 0] == 0).all()
    assert math.isclose(float((drawn[:, -1] - 3).double().mean()), (TARGET - 4) / 2, rel_tol=0.05)


LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax, as in test_whole_models
IN_STEPS = torch.arange(TRAINED)[None]


def rotated(text: Positions, positions: Tensor) -> Positions:
    return replace(text, distance=positions[:, None] - positions, frequencies=naive.rope(HEAD_DIM))


def interpolated(text: Positions, positions: Tensor) -> Positions:
    return replace(rotated(text, positions), frequencies=naive.rope(HEAD_DIM) * TRAINED / TARGET)


def biased(text: Positions, positions: Tensor) -> Positions:
    return replace(text, bias=-naive.slopes(HEADS) * (positions[:, None] - positions).abs())


def coded(text: Positions, positions: Tensor) -> Positions:
    angles = positions.double()[:, None] * naive.rope(WIDTH)
    return replace(text, code=torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))


WHOLE: list[tuple[str, str, Callable[[Positions, Tensor], Positions]]] = [
    ("pose", "llama", rotated),
    ("randpos", "llama", rotated),
    ("pi+pose", "llama", interpolated),
    ("rope+randpos", "gpt2", rotated),
    ("alibi+pose", "gpt2", biased),
    ("alibi+cape", "bert", biased),
    ("rope+cape", "llama", rotated),
    ("sinusoidal+cape", "gpt2", coded),
    ("sinusoidal+shape", "bert", coded),
    ("sinusoidal+randpos", "bert", coded),
]


@pytest.mark.parametrize(("name", "model", "does"), WHOLE, ids=[f"{name}-{model}" for name, model, _ in WHOLE])
def test_whole_models_in_training(name: str, model: str, does: Callable[[Positions, Tensor], Positions]) -> None:
    """No mask is given: gaps between positions are not taken for packed documents."""
    build, formula = models.MODELS[model]
    ids = models.text(TRAINED)
    patched = patch_model(without_dropout(build()), name, factor=8).train()
    torch.manual_seed(4)
    positions = scheme_of(patched).reposition(IN_STEPS, training=True)[0]
    torch.manual_seed(4)
    ours = models.logits(patched, ids)
    assert (ours - formula(build(), ids, does(naive.free(model, TRAINED), positions))).abs().max() <= LIMIT
    untouched = formula(build(), ids, does(naive.free(model, TRAINED), IN_STEPS[0]))  # control
    assert (ours - untouched).abs().max() > 100 * LIMIT


@pytest.mark.parametrize("name", ["pose", "shape", "cape", "randpos"])
def test_evaluation(name: str) -> None:
    """Only randomised positions stay random, as released; then a text cannot be continued."""
    ids = models.text(TRAINED)
    patched, unpatched = patch_model(models.llama(), name, factor=8), models.llama()
    assert scheme_of(patched).needs_whole_text == (name == "randpos")
    start, kept = ids[None, :9], {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    if name == "randpos":
        torch.manual_seed(0)
        assert (models.logits(patched, ids) - models.logits(patched, ids)).abs().max() > 0.1
        with pytest.raises(NeedsWholeText, match="use_cache=False"):
            patched.generate(start, **kept)
        assert patched.generate(start, **kept, use_cache=False).shape == (1, 12)
    else:
        assert describe(patched).proof.verdict == "identity"
        assert (models.logits(patched, ids) - models.logits(unpatched, ids)).abs().max() <= LIMIT
        assert torch.equal(patched.generate(start, **kept), unpatched.generate(start, **kept))


def test_continuing_a_cache_in_training_is_refused() -> None:
    patched = patch_model(models.llama(), "pose", factor=8).train()
    cache = patched(models.text(9)[None], use_cache=True).past_key_values
    with pytest.raises(NeedsWholeText, match="9 tokens"):
        patched(models.text(1)[None], past_key_values=cache)


def test_tables_refuse_fractional_positions() -> None:
    """CAPE's positions are fractional: tables and digits are refused, on codes of a function it trains."""
    ids = models.text(TRAINED)[None]
    with pytest.raises(SchemeNotDefined, match=r"between the rows of .*table.* \"rope\+cape\""):
        patch_model(models.gpt2(), "cape")
    for name in ("learned", "binary", "deberta", "rel_bias", "shaw", "wavelet"):
        with pytest.raises(FractionalPosition, match=f"'{name}' is defined at whole positions only, and 'cape'"):
            patch_model(models.gpt2(), f"{name}+cape")
    assert patch_model(models.gpt2(), "sinusoidal+cape").train()(ids).logits.isfinite().all()


def without_dropout(model: Any) -> Any:
    """GPT-2 and BERT drop activations in training, the formulas do not."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model
