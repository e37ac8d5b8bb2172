"""Window and log-n scaling, and where they change nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.schemes.attention_scale.logn import LogN

from . import models, naive
from .models import TRAINED

LIMIT = 1e-4


def context(queries: torch.Tensor, causal: bool, real: torch.Tensor | None = None) -> PositionContext:
    return PositionContext(queries, queries, causal, contiguous=real is None, real_keys=real)


def table_of(model: str, unpatched: torch.nn.Module) -> torch.Tensor:
    table = unpatched.transformer.wpe if model == "gpt2" else unpatched.bert.embeddings.position_embeddings
    return table.weight.detach().double()


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_window_keeps_the_table(model: str) -> None:
    """A masked dense attention over the model's own positions."""
    build, formula = models.MODELS[model]
    unpatched, ids = build(), models.text(TRAINED)
    free = (naive.causal if model == "gpt2" else naive.both_ways)(TRAINED)
    seen = free.seen & (free.distance.abs() < 9)
    expected = formula(unpatched, ids, replace(free, seen=seen, code=table_of(model, unpatched)))
    windowed = models.logits(patch_model(build(), "window", size=9), ids)
    assert (windowed - expected).abs().max() <= LIMIT
    assert (models.logits(unpatched, ids) - expected).abs().max() > 100 * LIMIT  # control


def test_logn_is_the_identity_within_the_trained_length() -> None:
    """Bit-equal to one there, the ratio of logarithms beyond."""
    scale = LogN(models.geometry()).query_scale(context(torch.arange(5 * TRAINED)[None], causal=True))[0]
    assert torch.equal(scale[:TRAINED], torch.ones(TRAINED))
    expected = [math.log(i + 1) / math.log(TRAINED) for i in range(TRAINED, 5 * TRAINED)]
    assert scale[TRAINED:].tolist() == pytest.approx(expected, rel=1e-6)
    assert scale[TRAINED] > 1  # control


def test_logn_without_the_clip_is_the_plain_ratio() -> None:
    scale = LogN(models.geometry(), clip=False).query_scale(context(torch.arange(99)[None], causal=True))[0]
    assert scale.tolist() == pytest.approx([math.log(i + 1) / math.log(TRAINED) for i in range(99)], rel=1e-6)


def test_logn_of_an_encoder_counts_the_real_tokens() -> None:
    real = torch.ones(2, 70, dtype=torch.bool)
    real[0, 40:] = False
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    scale = LogN(models.geometry(causal=False)).query_scale(context(positions, causal=False, real=real))
    rows = scale.expand(2, 70)
    assert rows[0].tolist() == pytest.approx([math.log(40) / math.log(TRAINED)] * 70, rel=1e-6)
    assert rows[1].tolist() == pytest.approx([math.log(70) / math.log(TRAINED)] * 70, rel=1e-6)


def test_logn_in_bert() -> None:
    """A whole encoder, alone and in a batch with a longer text, against the formula: n is the length of the sample."""
    short, long = models.text(50), models.text(70, seed=2)
    patched = patch_model(models.bert(), "rope+logn", target_length=70)
    ids, mask = torch.zeros(2, 70, dtype=torch.long), torch.zeros(2, 70, dtype=torch.long)
    ids[0, :50], ids[1], mask[0, :50], mask[1] = short, long, 1, 1
    with torch.no_grad():
        batch = patched(ids, attention_mask=mask).logits.double()
    for row, text in enumerate((short, long)):
        free = naive.both_ways(len(text))
        scale = torch.full((len(text),), math.log(len(text)) / math.log(TRAINED))
        rotated = replace(free, frequencies=naive.rope(models.HEAD_DIM))
        expected = naive.bert(models.bert(), text, replace(rotated, row_scale=scale))
        assert (batch[row, : len(text)] - expected).abs().max() <= LIMIT
        assert (models.logits(patched, text) - expected).abs().max() <= LIMIT
        unscaled = naive.bert(models.bert(), text, rotated)
        assert (unscaled - expected).abs().max() > 100 * LIMIT  # control


def test_yarn_and_logn_multiply() -> None:
    """A temperature on the logits and one on the queries: both at once."""
    ids = models.text(4 * TRAINED)
    both = models.logits(patch_model(models.llama(), "yarn+logn", factor=4), ids)
    yarn = patch_model(models.llama(), "yarn", factor=4)
    frequencies = torch.tensor(yarn.model.posenc.frequencies(), dtype=torch.float64)
    scale = torch.tensor([max(1.0, math.log(i + 1) / math.log(TRAINED)) for i in range(4 * TRAINED)])
    temperature = (0.1 * math.log(4) + 1) ** 2
    text = replace(
        naive.causal(4 * TRAINED), frequencies=frequencies, row_scale=scale, logit_scale=temperature
    )  # fmt: skip
    assert (both - naive.llama(models.llama(), ids, text)).abs().max() <= LIMIT
    assert (both - models.logits(yarn, ids)).abs().max() > 100 * LIMIT  # control


def test_an_encoder_has_yarn_of_its_sequence_length() -> None:
    length, ids = 3 * TRAINED, models.text(3 * TRAINED)
    expected = models.logits(patch_model(models.bert(), "yarn", factor=3), ids)
    found = models.logits(patch_model(models.bert(), "dynamic_yarn", factor=4), ids)
    assert (found - expected).abs().max() < LIMIT
    longer = models.logits(patch_model(models.bert(), "dynamic_yarn", factor=4), models.text(length + 8))[:length]
    assert (longer - expected).abs().max() > 100 * LIMIT  # control: another length, other factors


@pytest.mark.parametrize("length", [TRAINED, TRAINED + 9, 3 * TRAINED])
def test_an_encoder_rotates_by_its_sequence_length(length: int) -> None:
    """All rows of a text have its length: one rotation, whatever else is in the batch."""
    base = 10_000.0 * (length / TRAINED) ** (models.HEAD_DIM / (models.HEAD_DIM - 2))
    ids, free = models.text(length), naive.both_ways(length)
    expected = naive.bert(models.bert(), ids, replace(free, frequencies=naive.rope(models.HEAD_DIM, base)))
    patched = patch_model(models.bert(), "dynamic_ntk", factor=4)
    assert (models.logits(patched, ids) - expected).abs().max() < LIMIT
    batch = torch.cat((ids, models.text(7, seed=2)))[None]  # the same text, and pads behind it
    padded = patched(batch, attention_mask=torch.tensor([[1] * length + [0] * 7])).logits[0, :length].double()
    assert (padded - expected).abs().max() < LIMIT
