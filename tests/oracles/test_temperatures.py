"""Windows, and temperatures that grow with the length, by formula and in whole models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Ministral3Config, Ministral3ForCausalLM, PreTrainedModel

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.schemes.attention_scale.llama4_temp import Llama4Temperature
from hf_posenc.schemes.attention_scale.logn import LogN
from hf_posenc.schemes.attention_scale.ssmax import SSMax

from . import models, naive
from .models import HEADS, TRAINED
from .naive import Positions

LENGTH = 3 * TRAINED
LIMIT = 1e-4


def context(positions: Tensor, causal: bool = True, real: Tensor | None = None) -> PositionContext:
    return PositionContext(positions, positions, causal, contiguous=real is None, real_keys=real)


@dataclass(frozen=True)
class Sharpened(Positions):
    """A text whose layers multiply whole logits by a factor for each head and row, or subtract it."""

    layers: Iterator[Tensor] = field(default_factory=lambda: iter(()))
    subtract: bool = False

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        factor, logits = next(self.layers)[:, :, None], super().logits(query, key)
        return logits - factor if self.subtract else logits * factor


def factors(scheme: SSMax, keys: Tensor) -> Tensor:
    """s_h ln n_i + b_h, ``[heads, L]``."""
    shift = 0.0 if scheme.b is None else scheme.b.detach().double()[:, None]
    return scheme.s.detach().double()[:, None] * keys.double().log() + shift


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize("options", [{}, {"bias": 0.3}], ids=str)
@pytest.mark.parametrize("other", ["none", "rope", "alibi"])
def test_ssmax_in_whole_models(other: str, options: dict[str, Any], model: str) -> None:
    """The whole logit is scaled, ALiBi's part of it too."""
    build, formula = models.MODELS[model]
    ids = models.text(LENGTH)
    free = naive.free(model, LENGTH)
    patched = patch_model(build(), f"{other}+ssmax", target_length=LENGTH, **options)
    schemes = [m for m in patched.modules() if isinstance(m, SSMax)]
    assert len(schemes) == 2
    torch.manual_seed(5)
    for weight in (p for scheme in schemes for p in scheme.parameters()):
        torch.nn.init.normal_(weight, mean=0.4, std=0.2)
    keys = torch.full((LENGTH,), LENGTH) if model == "bert" else torch.arange(1, LENGTH + 1)
    bias = -naive.slopes(HEADS) * free.distance.abs() if other == "alibi" else 0.0
    frequencies = naive.rope(models.HEAD_DIM) if other == "rope" else None

    def logits(layers: list[Tensor], subtract: bool = False) -> Tensor:
        text = Sharpened(
            free.seen, free.distance, frequencies, bias, layers=iter(layers), subtract=subtract
        )  # fmt: skip
        return formula(build(), ids, text)

    per_layer = [factors(scheme, keys) for scheme in schemes]
    expected = logits(per_layer)
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    assert (logits(per_layer[::-1]) - expected).abs().max() > 100 * LIMIT  # control: each layer has its own
    ones = [torch.ones_like(f) for f in per_layer]
    assert (logits(per_layer, subtract=True) - logits(ones)).abs().max() < 1e-9  # the trap: a no-op
    assert (logits(ones) - expected).abs().max() > 100 * LIMIT  # and ours is none


def test_ssmax_starts_as_published() -> None:
    positions = torch.arange(100)[None]
    expected = 0.43 * torch.arange(1, 101).log()
    for options, shift in (({}, 0.0), ({"learned": False}, 0.0), ({"bias": 0.2}, 0.2), ({"bias": 0.0}, 0.0)):
        scheme = SSMax(models.geometry(), **options)
        scale = scheme.row_scale(context(positions)).detach()
        assert torch.allclose(scale.expand(1, HEADS, 100), (expected + shift).expand(1, HEADS, 100), atol=1e-6)
    assert not list(SSMax(models.geometry(), learned=False).parameters())
    assert len(list(SSMax(models.geometry(), bias=0.0).parameters())) == 2


PINS = [(-3, 1.0), (8190, 1.0), (8191, 1.0693), (16382, 1.0693), (16383, 1.1099), (131_071, 1.2833), (10**6, 1.4812)]


@pytest.mark.parametrize(("position", "expected"), PINS)
def test_llama4_pins(position: int, expected: float) -> None:
    scheme, positions = Llama4Temperature(models.geometry()), torch.tensor([[position]])
    assert abs(float(scheme.query_scale(context(positions))) - expected) < 5e-5
    assert (position >= scheme.unchanged_below) == (expected > 1)
    later = Llama4Temperature(models.geometry(), offset=0)  # Ministral 3
    assert float(later.query_scale(context(positions + 1))) == float(scheme.query_scale(context(positions)))


def copied(theirs: PreTrainedModel, config: LlamaConfig) -> LlamaForCausalLM:
    """A Llama with another model's weights."""
    ours = LlamaForCausalLM(config).eval()
    ours.load_state_dict({name.replace("feed_forward", "mlp"): w for name, w in theirs.state_dict().items()})
    return ours


SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@torch.no_grad()
def test_a_whole_ministral3() -> None:
    """On RoPE, in all layers, one position later."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 10}  # fmt: skip
    theirs = models.sharpened(Ministral3ForCausalLM(Ministral3Config(**SHAPE, rope_parameters=rope)))
    ids = torch.randint(0, 60, (1, 90), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids).logits

    def patched(**options: Any) -> Tensor:
        return patch_model(copied(theirs, LlamaConfig(**SHAPE)), "llama4_temp", scale=0.5, floor=10, **options)(
            ids
        ).logits

    assert (patched(offset=0) - expected).abs().max() <= 1e-5
    assert (patched(offset=1) - expected).abs().max() > 1e-3  # control


def test_logn_is_the_ratio_of_logarithms_from_the_trained_length_on() -> None:
    """Bit-equal to one within it; without the clip the plain ratio, of one key where CAPE shifts a query below 0."""
    ctx = context(torch.arange(-1, 5 * TRAINED)[None])
    expected = [math.log(max(i + 1, 1)) / math.log(TRAINED) for i in range(-1, 5 * TRAINED)]
    clipped, plain = (LogN(models.geometry(), clip=clip).query_scale(ctx)[0] for clip in (True, False))
    assert torch.equal(clipped[: TRAINED + 1], torch.ones(TRAINED + 1))
    assert clipped[TRAINED + 1 :].tolist() == pytest.approx(expected[TRAINED + 1 :], rel=1e-6)
    assert plain.tolist() == pytest.approx(expected, rel=1e-6)


def test_an_encoder_counts_the_real_tokens() -> None:
    real = torch.ones(2, 70, dtype=torch.bool)
    real[0, 40:] = False
    ctx, geometry = context((real.cumsum(-1) - 1).clamp(min=0), False, real), models.geometry(causal=False)
    logn = LogN(geometry).query_scale(ctx).expand(2, 70) * math.log(TRAINED)
    ssmax = SSMax(geometry, s_init=1.0).row_scale(ctx).detach().expand(2, HEADS, 70)
    expected = torch.tensor([40.0, 70.0]).log()[:, None]
    torch.testing.assert_close(logn, expected.expand(2, 70))
    torch.testing.assert_close(ssmax, expected[..., None].expand(2, HEADS, 70))


def table_of(model: str, unpatched: torch.nn.Module) -> torch.Tensor:
    table = unpatched.transformer.wpe if model == "gpt2" else unpatched.bert.embeddings.position_embeddings
    return table.weight.detach().double()


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_window_keeps_the_table(model: str) -> None:
    """A masked dense attention over the model's own positions."""
    build, formula = models.MODELS[model]
    unpatched, ids = build(), models.text(TRAINED)
    free = naive.free(model, TRAINED)
    seen = free.seen & (free.distance.abs() < 9)
    expected = formula(unpatched, ids, replace(free, seen=seen, code=table_of(model, unpatched)))
    windowed = models.logits(patch_model(build(), "window", size=9), ids)
    assert (windowed - expected).abs().max() <= LIMIT
    assert (models.logits(unpatched, ids) - expected).abs().max() > 100 * LIMIT  # control


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
