"""MrRoPE, resonance, clipped RoPE and LongRoPE against their papers and transformers, alone and after a scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model, scheme_of
from hf_posenc.errors import CannotCombine, OptionOutOfRange, PosEncError
from hf_posenc.schemes.rotary.mrrope import MrRoPE
from hf_posenc.schemes.rotary.yarn import Yarn

from . import models, naive
from .models import HEAD_DIM, TRAINED
from .naive import rope

LONG, FACTOR = 4 * TRAINED, 4


def radix(unscaled: Tensor, trained: int, factor: float, growing: bool) -> Tensor:
    """Section 3.2: a radix for each pair between the 32-turn and the 1-turn pair; frequencies over their product."""
    turns = trained * unscaled / (2 * math.pi)
    low = max([m for m, count in enumerate(turns) if count > 32], default=0)
    high = min(m for m, count in enumerate(turns) if count < 1)
    n, found, product = high - low, [], 1.0
    for m, w in enumerate(unscaled.tolist()):
        found.append(w / product)
        if low <= m < high:
            product *= factor ** (2 * (1 + m - low) / (n * (n + 1)) if growing else 1 / n)
    return torch.tensor(found, dtype=torch.float64)


def whole(frequencies: Tensor) -> Tensor:
    return 2 * math.pi / (2 * math.pi / frequencies).round()


def faded(frequencies: Tensor, n: int) -> Tensor:
    window = (1 + torch.linspace(0, math.pi, n, dtype=torch.float64).cos()) / 2
    return torch.cat((frequencies[:-n], frequencies[-n:] * window))


def frequencies_of(model: object) -> Tensor:
    return torch.tensor(scheme_of(model).rotation().frequencies, dtype=torch.float64)


@pytest.mark.parametrize(
    ("head_dim", "trained", "base", "borders"),
    [(128, 32768, 1e6, (23, 40)), (128, 8192, 500_000.0, None), (64, 512, 10_000.0, None), (16, 256, 10_000.0, None)],
)  # the first: Qwen, as others who measured the paper's rule report it
@pytest.mark.parametrize("kind", ["pro", "uni"])
def test_mrrope(kind: str, head_dim: int, trained: int, base: float, borders: tuple[int, int] | None) -> None:
    geometry = models.geometry(head_dim=head_dim, trained=trained, target=8 * trained, base=base)
    scheme = MrRoPE(geometry, kind=kind)
    found = torch.tensor(scheme.frequencies(), dtype=torch.float64)
    expected = radix(naive.rope(head_dim, base), trained, 8, kind == "pro")
    assert (found / expected - 1).abs().max() < 1e-12
    assert scheme.logit_scale() == pytest.approx((0.1 * math.log(8) + 1) ** 2)
    assert borders in (None, (scheme.last_fast, scheme.first_slow))
    assert (found / torch.tensor(Yarn(geometry).frequencies()) - 1).abs().max() > 0.01  # control


def test_mrrope_needs_a_slow_pair() -> None:
    with pytest.raises(OptionOutOfRange, match="slowest pair"):
        MrRoPE(models.geometry(trained=131_072, target=262_144))
    with pytest.raises(OptionOutOfRange, match="beta_fast"):
        MrRoPE(models.geometry(), beta_fast=1.0)


SLOWED = radix(naive.rope(HEAD_DIM), TRAINED, FACTOR, True)
CASES: dict[str, Callable[[], Tensor]] = {
    "mrrope": lambda: SLOWED,
    "rope+resonance": lambda: whole(naive.rope(HEAD_DIM)),
    "pi+resonance": lambda: whole(naive.rope(HEAD_DIM) / FACTOR),
    "mrrope+resonance": lambda: whole(SLOWED),
    "rope+clipped_rope": lambda: faded(naive.rope(HEAD_DIM), 8),
    "pi+clipped_rope": lambda: faded(naive.rope(HEAD_DIM) / FACTOR, 8),
}


def rotated(scheme: str, model: str = "llama") -> naive.Positions:
    """A long text under a scheme."""
    scale = (0.1 * math.log(FACTOR) + 1) ** 2 if "mrrope" in scheme else 1.0
    return replace(naive.free(model, LONG), frequencies=CASES[scheme](), logit_scale=scale)


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize("scheme", CASES)
def test_whole_models_equal_the_definition(scheme: str, model: str) -> None:
    build, formula = models.MODELS[model]
    ids = models.text(LONG)
    text = rotated(scheme, model)
    patched = patch_model(build(), scheme, factor=FACTOR, **({"pairs": 8} if "clipped" in scheme else {}))
    assert (models.logits(patched, ids) - formula(build(), ids, text)).abs().max() < 1e-4
    plain = replace(text, frequencies=naive.rope(HEAD_DIM) / (FACTOR if "pi" in scheme else 1))  # control
    assert (models.logits(patched, ids) - formula(build(), ids, plain)).abs().max() > 0.1


@pytest.mark.parametrize("scheme", ["mrrope", "pi+resonance", "pi+clipped_rope"])
def test_gradients_equal_the_definition(scheme: str) -> None:
    ids, options = models.text(LONG), {"pairs": 8} if "clipped" in scheme else {}
    _, expected = models.dense_with_gradient("llama", models.llama(), ids, rotated(scheme))
    _, found = models.with_gradient(patch_model(models.llama(), scheme, factor=FACTOR, **options), ids)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_scaled_model_is_rounded_as_it_is() -> None:
    """Alone, both change the rotation that the model has, its own scaling and temperature included."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": TRAINED}
    scaled = models.llama(rope_parameters=scaling, max_position_embeddings=LONG)
    own = scaled.model.rotary_emb.inv_freq.double()
    for scheme, change in {"resonance": whole, "clipped_rope": lambda w: faded(w, 2)}.items():
        patched = patch_model(models.llama(rope_parameters=scaling, max_position_embeddings=LONG), scheme, factor=1)
        assert (frequencies_of(patched) / change(own) - 1).nan_to_num().abs().max() < 1e-6
        assert scheme_of(patched).logit_scale() == pytest.approx((0.1 * math.log(4) + 1) ** 2)


def of_length(length: int) -> Tensor:
    """Frequencies of dynamic NTK."""
    stretch = max(length, TRAINED) / TRAINED
    return naive.rope(HEAD_DIM, 10_000.0 * stretch ** (HEAD_DIM / (HEAD_DIM - 2)))


def test_rotations_of_rows_are_rounded_each() -> None:
    """Those of dynamic NTK, one a length, and both tables of LongRoPE; also with a KV cache."""
    ids, text = models.text(LONG), naive.causal(LONG)
    dynamic = torch.stack([of_length(i + 1) for i in range(LONG)])
    both = by_row(text, SHORT, LONGER, FACTOR)
    rows = {"dynamic_ntk": replace(text, frequencies=dynamic), "longrope": both}
    for scheme, unrounded in rows.items():
        rounded = naive.llama(models.llama(), ids, replace(unrounded, frequencies=whole(unrounded.frequencies)))
        options = FACTORS if scheme == "longrope" else {}
        patched = patch_model(models.llama(), f"{scheme}+resonance", factor=FACTOR, **options)
        cached = models.in_pieces(patched, ids[None], TRAINED + 3, LONG - 2)[0].double()
        for found in (models.logits(patched, ids), cached):
            assert (found - rounded).abs().max() <= LIMIT
        assert (naive.llama(models.llama(), ids, unrounded) - rounded).abs().max() > 100 * LIMIT  # control


def test_angles_repeat_exactly_after_a_wavelength() -> None:
    """What the rounding is for: a fast pair beyond the trained length turns as it did within."""
    patched = patch_model(models.llama(), "resonance", factor=FACTOR)
    turns = (2 * math.pi / frequencies_of(patched)).round()
    fast = turns <= TRAINED
    assert fast.any()
    angles = (frequencies_of(patched) * turns * 1000)[fast]
    assert (angles.cos() - 1).abs().max() < 1e-9
    assert (naive.rope(HEAD_DIM)[fast] * turns[fast] * 1000).cos().min() < 0.9  # control


@pytest.mark.parametrize("n", [2, 3, 8])
def test_pairs_are_faded_or_cut(n: int) -> None:
    soft = frequencies_of(patch_model(models.llama(), "clipped_rope", pairs=n))
    assert (soft - faded(naive.rope(HEAD_DIM), n)).abs().max() < 1e-15
    hard = frequencies_of(patch_model(models.llama(), "clipped_rope", pairs=n, clip="hard"))
    assert torch.equal(hard[:-n], naive.rope(HEAD_DIM)[:-n])
    assert not hard[-n:].any()


def test_the_default_is_the_authors_share() -> None:
    patched = patch_model(models.llama(head_dim=128), "clipped_rope")
    assert (frequencies_of(patched) != naive.rope(128)).sum() == 19  # of 20, the first keeps its frequency


@pytest.mark.parametrize(
    ("scheme", "options", "error"),
    [
        ("clipped_rope", {"pairs": HEAD_DIM // 2 + 1}, OptionOutOfRange),
        ("resonance+clipped_rope", {}, CannotCombine),
        ("rope+resonance", {"learn_freq": True}, CannotCombine),
        ("none+resonance", {}, PosEncError),
    ],
)
def test_what_is_refused(scheme: str, options: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        patch_model(models.llama(), scheme, factor=FACTOR, **options)


LENGTH = FACTOR * TRAINED
SHORT = [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7]
LONGER = [1.0, 1.1, 1.5, 2.2, 3.0, 4.0, 4.2, 5.0]
FACTORS = {"short_factor": SHORT, "long_factor": LONGER}
LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax


def native(**more: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": TRAINED,
        "factor": float(FACTOR), **FACTORS, **more,
    }  # fmt: skip


def by_row(text: naive.Positions, short: list[float], long: list[float], factor: float) -> naive.Positions:
    """One row of frequencies a query, from the definition."""
    rows = [rope(HEAD_DIM) / torch.tensor(short if i < TRAINED else long) for i in range(len(text.seen))]
    scale = 1 + math.log(factor) / math.log(TRAINED)
    return replace(text, frequencies=torch.stack(rows), logit_scale=scale)


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("options", [FACTORS, {"long_factor": LONGER}], ids=["both", "long"])
def test_whole_model_switches_by_row(model: str, options: dict[str, list[float]]) -> None:
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    short = options.get("short_factor", [1.0] * (HEAD_DIM // 2))
    expected = formula(build(), ids, by_row(text, short, LONGER, FACTOR))
    ours = models.logits(patch_model(build(), "longrope", factor=FACTOR, **options), ids)
    assert (ours - expected).abs().max() <= LIMIT
    for one_table in (short, LONGER):  # control: either table for all rows
        other = formula(build(), ids, by_row(text, one_table, one_table, FACTOR))
        assert (other - expected).abs().max() > 100 * LIMIT


def test_equals_transformers_up_to_the_trained_length() -> None:
    """And beyond it in the rows whose keys know no other table: those of a single layer."""
    for layers, length, rows in ((2, TRAINED, slice(None)), (1, LENGTH, slice(TRAINED, None))):
        ids = models.text(length)
        stock = models.llama(rope_parameters=native(), max_position_embeddings=LENGTH, num_hidden_layers=layers)
        ours = patch_model(models.llama(num_hidden_layers=layers), "longrope", factor=FACTOR, **FACTORS)
        deviation = (models.logits(ours, ids) - models.logits(stock, ids)).abs()
        assert deviation[rows].max() <= LIMIT
    assert deviation[: rows.start].max() > 100 * LIMIT  # control: one length for the whole call moves the early rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_factor": LONGER[:-1]}, "must have 8 numbers"),
        ({"short_factor": [*SHORT, 1.0]}, "got 9"),
        ({"long_factor": [0.9, *LONGER[1:]]}, "greater than or equal to 1"),
        ({"keep_start": 4}, "not a function of distance"),
    ],
)
def test_factors_that_fit_no_pair_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionOutOfRange, match=message):
        patch_model(models.llama(), "longrope", factor=FACTOR, **options)


@pytest.mark.parametrize("length", [TRAINED, TRAINED + 1, FACTOR * TRAINED])
def test_an_encoder_rotates_by_its_sequence_length(length: int) -> None:
    """Short factors for a text within the trained length, long ones for every row of a longer text."""
    pairs = models.HEAD_DIM // 2
    factors = {"short_factor": [1.0 + 0.1 * m for m in range(pairs)], "long_factor": [1.0 + m for m in range(pairs)]}
    patched = patch_model(models.bert(), "longrope", factor=FACTOR, attention_factor=1.0, **factors)
    mine = factors["short_factor" if length <= TRAINED else "long_factor"]
    ids, free = models.text(length), naive.both_ways(length)
    frequencies = naive.rope(models.HEAD_DIM) / torch.tensor(mine, dtype=torch.float64)
    expected = naive.bert(models.bert(), ids, replace(free, frequencies=frequencies))
    assert (models.logits(patched, ids) - expected).abs().max() < 1e-4
