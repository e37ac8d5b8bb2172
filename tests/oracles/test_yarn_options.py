"""YaRN with ``mscale``, and the by-parts blend that preceded it."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posenc import patch_model
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.rotary.ntk_parts_v1 import NTKByPartsV1
from hf_posenc.schemes.rotary.yarn import NTKByParts, Yarn

from . import models
from .models import TRAINED
from .naive import rope


@pytest.mark.parametrize(("mscale", "mscale_all_dim"), [(1.0, 1.0), (0.707, 1.0), (1.0, 0.5), (0.3, 2.0)])
def test_mscale_equals_transformers(mscale: float, mscale_all_dim: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 512}
    scaling |= {"mscale": mscale, "mscale_all_dim": mscale_all_dim}
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=scaling, max_position_embeddings=4096)
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    geometry = models.geometry(head_dim=64, trained=512, target=4096)
    ours = Yarn(geometry, mscale=mscale, mscale_all_dim=mscale_all_dim).logit_scale()
    assert ours == pytest.approx(attention_factor**2, rel=1e-9)


def test_whole_model_with_mscale_equals_transformers() -> None:
    ids, options = models.text(4 * TRAINED), {"mscale": 1.5, "mscale_all_dim": 0.5}
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": TRAINED}
    stock = models.llama(rope_parameters=scaling | options, max_position_embeddings=4 * TRAINED)
    expected = models.logits(stock, ids)
    assert (models.logits(patch_model(models.llama(), "yarn", factor=4, **options), ids) - expected).abs().max() < 1e-4
    plain = models.logits(patch_model(models.llama(), "yarn", factor=4), ids)
    assert (plain - expected).abs().max() > 1e-2  # control


@pytest.mark.parametrize(
    "options",
    [{"mscale": 1.0}, {"mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.2}],
    ids=str,
)
def test_half_a_temperature_or_two_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(OptionOutOfRange, match="mscale"):
        Yarn(models.geometry(), **options)


def released(dim: int, trained: int, base: float, scale: float) -> torch.Tensor:
    """``LlamaPartNTKScaledRotaryEmbedding`` from its definition, with ramps as numbers of turns, in float64."""

    def ramp(fast: float, slow: float) -> torch.Tensor:
        first, last = (dim * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow))
        low, high = max(math.floor(first), 0), min(math.ceil(last), dim - 1)
        return ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)

    by_base = rope(dim, base * scale ** (dim / (dim - 2)))
    mixed = torch.lerp(by_base, rope(dim, base) / scale, ramp(1.25, 0.75))
    return torch.lerp(rope(dim, base), mixed, ramp(16, 2))


@pytest.mark.parametrize("scale", [1.0, 2.0, 8.0])
@pytest.mark.parametrize(("dim", "trained", "base"), [(128, 2048, 10_000.0), (64, 512, 10_000.0), (16, 256, 500.0)])
def test_first_release_of_by_parts(dim: int, trained: int, base: float, scale: float) -> None:
    geometry = models.geometry(head_dim=dim, trained=trained, target=round(trained * scale), base=base)
    ours = torch.tensor(NTKByPartsV1(geometry).frequencies(), dtype=torch.float64)
    assert torch.allclose(ours, released(dim, trained, base, scale), rtol=1e-9)
    if scale > 1:  # control: the second release is another blend
        second = torch.tensor(NTKByParts(geometry).frequencies(), dtype=torch.float64)
        assert ((ours / second).log().abs() > 0.05).any()
