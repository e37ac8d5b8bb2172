"""LongRoPE: frequencies as in transformers, two tables by row, and cached keys that stay valid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.errors import OptionOutOfRange

from . import models, naive
from .models import HEAD_DIM, TRAINED
from .naive import rope

FACTOR = 4
LENGTH = FACTOR * TRAINED
SHORT = [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7]
LONG = [1.0, 1.1, 1.5, 2.2, 3.0, 4.0, 4.2, 5.0]
FACTORS = {"short_factor": SHORT, "long_factor": LONG}
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
@pytest.mark.parametrize("options", [FACTORS, {"long_factor": LONG}], ids=["both", "long"])
def test_whole_model_switches_by_row(model: str, options: dict[str, list[float]]) -> None:
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.causal(LENGTH)
    short = options.get("short_factor", [1.0] * (HEAD_DIM // 2))
    expected = formula(build(), ids, by_row(text, short, LONG, FACTOR))
    ours = models.logits(patch_model(build(), "longrope", factor=FACTOR, **options), ids)
    assert (ours - expected).abs().max() <= LIMIT
    for one_table in (short, LONG):  # control: either table for all rows
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


@pytest.mark.parametrize("cut", [1, TRAINED - 1, TRAINED, TRAINED + 1])
def test_cached_equals_uncached(cut: int) -> None:
    """Where transformers' own goes stale, on the same weights, it does not."""
    ids = models.text(TRAINED + 6)
    patched = patch_model(models.llama(), "longrope", factor=FACTOR, **FACTORS)
    assert (models.in_pieces(patched, ids[None], cut)[0] - models.logits(patched, ids)).abs().max() <= LIMIT
    if cut <= TRAINED:  # control; once past the switch, one table serves their later calls too
        stock = models.llama(rope_parameters=native(), max_position_embeddings=LENGTH)
        assert (models.in_pieces(stock, ids[None], cut)[0] - models.logits(stock, ids)).abs().max() > 100 * LIMIT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_factor": LONG[:-1]}, "must have 8 numbers"),
        ({"short_factor": [*SHORT, 1.0]}, "got 9"),
        ({"long_factor": [0.9, *LONG[1:]]}, "greater than or equal to 1"),
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
