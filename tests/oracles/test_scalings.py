"""Frequency scalings against transformers' own, closed forms, and the order any stretch must keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.registry import scheme_class
from hf_posenc.schemes.rotary.llama3 import Llama3
from hf_posenc.schemes.rotary.rotary import Rotary
from hf_posenc.schemes.rotary.yarn import NTKByParts, Yarn

from . import models

SHAPES = [(16, 256, 10_000.0), (64, 512, 10_000.0), (128, 8192, 500_000.0), (64, 2048, 1e6)]


def ours(name: str, head_dim: int, trained: int, base: float, factor: float, **options: Any) -> Rotary:
    geometry = models.geometry(head_dim=head_dim, trained=trained, target=round(trained * factor), base=base)
    scheme = scheme_class(name)(geometry, **options)
    assert isinstance(scheme, Rotary)
    return scheme


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["rope", "abf", "proportional", "pi", "ntk", "ntk_parts", "yarn", "llama3"])
def test_exported_rope_parameters_mean_the_same_in_transformers(name: str, shape: tuple[int, int, float]) -> None:
    """An unpatched Llama of the exported `rope_parameters` turns and sharpens as the scheme does."""
    head_dim, trained, _ = shape
    scheme = ours(name, *shape, 4.0)
    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
        max_position_embeddings=4 * trained, rope_parameters=scheme.native(),
    )  # fmt: skip
    theirs = LlamaRotaryEmbedding(config)
    expected = torch.zeros(head_dim // 2, dtype=torch.float64)
    expected[: len(theirs.inv_freq)] = theirs.inv_freq.double()
    assert torch.allclose(torch.tensor(scheme.frequencies(), dtype=torch.float64), expected, rtol=2e-6, atol=0)
    assert scheme.logit_scale() == pytest.approx(theirs.attention_scaling**2, rel=1e-9)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [(Llama3, {"low_freq_factor": 4.0, "high_freq_factor": 4.0}), (NTKByParts, {"beta_fast": 1.0, "beta_slow": 2.0})],
)
def test_bounds_the_wrong_way_round_are_refused(scheme: type[Rotary], options: dict[str, float]) -> None:
    with pytest.raises(OptionOutOfRange, match="must be greater than"):
        scheme(models.geometry(), **options)


def test_texts_packed_into_one_row_have_lengths_of_their_own() -> None:
    """Counted by hand; padding repeats a position."""
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3], [0, 0, 0, 1, 2, 3, 4, 5, 6], [5, 6, 2, 3, 4, 5, 6, 7, 8]])
    expected = torch.tensor([[3, 3, 3, 2, 2, 4, 4, 4, 4], [1, 1, 7, 7, 7, 7, 7, 7, 7], [7] * 2 + [9] * 7])
    assert torch.equal(text_lengths(positions), expected)


@pytest.mark.parametrize(("mscale", "mscale_all_dim"), [(1.0, 1.0), (0.707, 1.0), (1.0, 0.5), (0.3, 2.0)])
def test_mscale_equals_transformers(mscale: float, mscale_all_dim: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 512}
    scaling |= {"mscale": mscale, "mscale_all_dim": mscale_all_dim}
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=scaling, max_position_embeddings=4096)
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    geometry = models.geometry(head_dim=64, trained=512, target=4096)
    ours = Yarn(geometry, mscale=mscale, mscale_all_dim=mscale_all_dim).logit_scale()
    assert ours == pytest.approx(attention_factor**2, rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [{"mscale": 1.0}, {"mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.2}],
    ids=str,
)
def test_half_a_temperature_or_two_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(OptionOutOfRange, match="mscale"):
        Yarn(models.geometry(), **options)
