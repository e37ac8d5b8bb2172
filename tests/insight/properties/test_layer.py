"""Logits and outputs of the single layer against formulas in float64 and the engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_posenc.attention.routes import dense_blocks, length_rotation
from hf_posenc.insight.properties import PropertyTarget, targets
from hf_posenc.insight.properties.layer import gaussian, logits

COUNT = 40


def target(scheme: str) -> PropertyTarget:
    return targets(scheme)[0]


def content(seed: int) -> Tensor:
    return gaussian(1, COUNT, 128, seed=seed)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """RoFormer's complex form on half-split channels: ``x [heads, n, 32]``."""
    angles = positions.double()[:, None] * 10_000.0 ** (-2 * torch.arange(16).double() / 32)
    pairs = torch.complex(x[..., :16], x[..., 16:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_logits_of_rope_are_the_complex_form(start: int) -> None:
    layer, positions = target("rope").layer(), torch.arange(start, start + COUNT)
    found = layer.scores(content(1), content(2), positions[None])[0]
    q, k = (rotated(one[0], positions) for one in (layer.query(content(1)), layer.key(content(2))))
    wanted = q @ k.repeat_interleave(2, 0).mT / 32**0.5
    seen = torch.ones(COUNT, COUNT).tril().bool()
    assert torch.equal(found.isfinite(), seen.expand_as(found))
    assert torch.allclose(found[:, seen], wanted[:, seen], atol=1e-6)  # tables are float32
    other = torch.softmax(found - wanted.mT, -1)
    assert not torch.allclose(other, torch.softmax(found - wanted, -1), atol=1e-2)  # control


@pytest.mark.parametrize(
    "scheme",
    ["t5", "self_extend", "dynamic_ntk", "window", "deberta", "fox", "ssmax", "cope"],
)
def test_weights_are_the_engines(scheme: str) -> None:
    """In float32, where the engine takes every bias."""
    layer = target(scheme).layer(dtype=torch.float32)
    with torch.no_grad():
        call = layer.call(content(1).float(), content(1).float(), torch.arange(COUNT)[None])
        engine = (dense_blocks if call.terms.row_rotation is None else length_rotation).attend_with_weights(call)[1]
        assert torch.allclose(logits(call).softmax(-1), engine, atol=1e-5)
