"""FIRE against its formula in float64, its reductions, and the traps: which end of the normaliser is clamped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from hf_posenc.core.context import PositionContext
from hf_posenc.schemes.bias.fire import FIRE

from . import content, models, naive
from .models import HEADS


def stirred(scheme: FIRE, seed: int = 0, by: float = 0.5) -> FIRE:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=by)
    return scheme


def definition(scheme: FIRE, length: int, *, causal: bool, clamp: Any = torch.maximum) -> Tensor:
    """f(ψ(|i − j|) / (ψ(max(reach, τ)) + ε)), the hidden layer written out, ``[heads, L, L]``."""
    c, tau = (float(x) for x in (scheme.c.detach().double().abs(), (scheme.multiplier.detach() * scheme.tau).abs()))
    reach = torch.arange(length) if causal else torch.full((length,), length - 1)
    farthest = clamp(reach.double(), torch.tensor(tau, dtype=torch.float64))[:, None]
    x = torch.log(c * naive.distances(length).abs().double() + 1) / (torch.log(c * farthest + 1) + scheme.eps)
    w1, b1, w2, b2 = (
        p.detach().double() for p in (scheme.inner.weight, scheme.inner.bias, scheme.outer.weight, scheme.outer.bias)
    )
    hidden = (x[..., None] * w1[:, 0] + b1).clamp(min=0)
    return (hidden @ w2.T + b2).permute(2, 0, 1)


def bias_of(scheme: FIRE, length: int, *, causal: bool, start: int = 0, rows: slice = slice(None)) -> Tensor:
    """What the scheme says of a text that starts at some position, ``[heads, rows, L]``."""
    ctx = content.context(torch.arange(start, start + length)[None], causal=causal)
    query = torch.zeros(1, HEADS, length, 4)
    return scheme.bias(ctx).of_block(content.block(ctx, query, query, rows))[0].detach()


@pytest.mark.parametrize("causal", [True, False])
def test_values_and_gradients_are_those_of_the_layers(causal: bool) -> None:
    """The hidden layer that is looked up instead of computed, with units that are always off, on, or vertical."""
    for seed in range(4):
        scheme = stirred(FIRE(models.geometry(causal=causal), tau=20.0), seed)
        with torch.no_grad():
            scheme.inner.weight[:3] = 0.0
            scheme.inner.bias[2] = 0.0
            scheme.inner.weight[5], scheme.inner.weight[6] = 1e-38, -1e-38
        positions = torch.arange(70)[None]
        reach = positions if causal else torch.full((1, 1), 69)
        distance = positions[:, :, None] - positions[:, None]
        ours = scheme.of(distance, reach)
        assert (ours[0].detach() - definition(scheme, 70, causal=causal)).abs().max() < 1e-5
        threshold = (scheme.multiplier * scheme.tau).abs()
        fraction = scheme.psi(distance.abs()) / (scheme.psi(reach.float().maximum(threshold))[..., None] + scheme.eps)
        hidden = linear(fraction[..., None], scheme.inner.weight, scheme.inner.bias).relu()
        layers = linear(hidden, scheme.outer.weight, scheme.outer.bias).movedim(-1, 1)
        steer = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed))
        names = [name for name, _ in scheme.named_parameters()]
        grads = [torch.autograd.grad((y * steer).sum(), list(scheme.parameters())) for y in (ours, layers)]
        for name, one, two in zip(names, *grads, strict=True):
            assert (one - two).abs().max() <= 1e-4 * two.abs().max().clamp(min=1e-3), name


def test_queries_within_the_threshold_ignore_absolute_position() -> None:
    """Relative up to τ, and beyond it a fraction of the row: both on purpose."""
    scheme = stirred(FIRE(models.geometry(), tau=64.0))
    with torch.no_grad():
        scheme.multiplier.fill_(1.0)
    near = bias_of(scheme, 30, causal=True)
    assert torch.equal(bias_of(scheme, 30, causal=True, start=30), near)
    assert (bias_of(scheme, 30, causal=True, start=100) - near).abs().max() > 1e-2  # control


def test_an_encoder_counts_the_real_tokens() -> None:
    """A text alone, and padded in a batch with a longer one."""
    scheme, mask = stirred(FIRE(models.geometry(causal=False), tau=8.0)), torch.ones(2, 70, dtype=torch.bool)
    mask[0, :30] = False
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ctx = PositionContext(positions, positions, causal=False, contiguous=False, real_keys=mask)
    query = torch.zeros(2, HEADS, 70, 4)
    batch = scheme.bias(ctx).of_block(content.block(ctx, query, query)).detach()
    assert torch.allclose(batch[0, :, 30:, 30:], bias_of(scheme, 40, causal=False), atol=1e-6)
    assert torch.allclose(batch[1], bias_of(scheme, 70, causal=False), atol=1e-6)
    assert (batch[0, :, 30:, 30:] - batch[1, :, :40, :40]).abs().max() > 1e-2  # control


@pytest.mark.parametrize("spoil", ["c", "multiplier", "both"])
def test_no_parameter_value_gives_infinity(spoil: str) -> None:
    """c and τ at zero, below it, and huge; a million tokens away."""
    for value in (0.0, -1e-30, -3.0, 1e30):
        scheme = stirred(FIRE(models.geometry()))
        with torch.no_grad():
            for name in ("c", "multiplier") if spoil == "both" else (spoil,):
                getattr(scheme, name).fill_(value)
        positions = torch.tensor([[0, 1, 10**6 - 1, 10**6]])
        bias = scheme.of(positions[:, :, None] - positions[:, None], positions)
        assert bias.isfinite().all()
        grads = torch.autograd.grad(bias.sum(), list(scheme.parameters()))
        assert all(grad.isfinite().all() for grad in grads)
