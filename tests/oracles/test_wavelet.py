"""Ricker wavelets against the formula over all pairs, and what may be left out without a trace."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model, scheme_of
from hf_posenc.schemes.bias.wavelet import Wavelet

from . import content, models, naive
from .models import HEAD_DIM, HEADS, TRAINED

LENGTH = 3 * TRAINED
LIMIT = 1e-4
OPTIONS: list[dict[str, Any]] = [
    {},
    {"scales": [1.0, 3.0, 9.0, 27.0], "shifts": [-2.0, 0.0, 5.0, 40.0]},
    {"shifts": [0.0, 10.0]},
]


def wave(distance: Tensor, scale: float, shift: float) -> Tensor:
    """ψ((Δ − b) / a), float64."""
    t = (distance.double() - shift) / scale
    return (1 - t**2) * torch.exp(-(t**2) / 2)


def vectors(distance: Tensor, options: dict[str, Any]) -> Tensor:
    """p of every distance, ``[…, HEAD_DIM]``: shifts outermost, scales within."""
    scales = options.get("scales", [2.0**n for n in range(8)])
    shifts = options.get("shifts", [0.0, 1.0])
    return torch.stack([wave(distance, a, b) for b in shifts for a in scales], dim=-1)


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_whole_models(model: str, options: dict[str, Any]) -> None:
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.free(model, LENGTH)

    def logits(distance: Tensor) -> Tensor:
        p = vectors(distance, options)
        layer = lambda q, k: torch.einsum("hid,ijd->hij", q, p) / math.sqrt(HEAD_DIM)  # noqa: E731
        return formula(build(), ids, content.with_layers(text, [layer, layer]))

    expected = logits(text.distance)
    patched = patch_model(build(), "wavelet", target_length=LENGTH, **options)
    assert not list(scheme_of(patched).parameters())
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    assert (logits(text.distance + 1) - expected).abs().max() > 100 * LIMIT  # control
    if model == "bert":
        assert (logits(-text.distance) - expected).abs().max() > 100 * LIMIT  # control: the other sign


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
def test_wavelets_are_zero_beyond_their_support(causal: bool, contiguous: bool) -> None:
    """The table ends where float32 has only zeros, wherever the text stands."""
    scheme = Wavelet(models.geometry(causal=causal), scales=[1.0, 2.0], shifts=[float(b) for b in range(8)])
    assert scheme.reach == 37
    positions = torch.arange(10**6 - 150, 10**6)[None]
    ctx = content.context(positions, causal=causal, contiguous=contiguous)
    query = torch.randn(1, HEADS, 150, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    ours = scheme.bias(ctx).of_block(content.block(ctx, query, query))
    p = vectors(naive.distances(150), {"scales": [1.0, 2.0], "shifts": [float(b) for b in range(8)]})
    exact = torch.einsum("bhid,ijd->bhij", query.double(), p) / math.sqrt(HEAD_DIM)
    apart = (ours - exact).abs()
    assert (apart.tril() if causal else apart).max() < 1e-6
    assert (p[naive.distances(150).abs() > 37].float() == 0).all()
