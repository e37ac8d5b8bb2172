"""``scale_invariant`` against dense float64 sums, and its premise: ranges of distances that weigh alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Block
from hf_posenc.schemes.attention_scale.scale_invariant import ScaleInvariant

from ..families.tiny import tiny, tokens
from . import models, naive
from .models import HEAD_DIM, TRAINED
from .naive import Positions

IDS, PADDED = tokens(40), torch.tensor([[0] * 11 + [1] * 29, [1] * 40])


@dataclass(frozen=True)
class Stretched(Positions):
    """Logits a z + m of every pair, ``tau`` being where they begin to differ."""

    tau: float = 10.0

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        squared = 2 * torch.log(self.distance.clamp(min=0).double() / self.tau + 1) + 1
        return squared.sqrt() * super().logits(query, key) + 1 - squared


@pytest.mark.parametrize("tau", [10.0, 0.5])
@pytest.mark.parametrize("scheme", ["rope+scale_invariant", "none+scale_invariant"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_in_a_whole_model(name: str, scheme: str, tau: float) -> None:
    """Outputs, and gradients of the embeddings."""
    (build, dense), ids, free = models.MODELS[name], models.text(TRAINED), naive.causal(TRAINED)
    text = Stretched(free.seen, free.distance, naive.rope(HEAD_DIM) if "rope" in scheme else None, tau=tau)
    found, gradient = models.with_gradient(patch_model(build(), scheme, tau=tau), ids)
    wanted, wanted_gradient = models.dense_with_gradient(name, build(), ids, text)
    assert (found - wanted).abs().max() < 2e-4
    torch.testing.assert_close(gradient, wanted_gradient, atol=1e-5, rtol=2e-3)
    assert (found - dense(build(), ids, replace(text, tau=2 * tau))).abs().max() > 0.05  # control


def test_every_range_of_distances_weighs_alike() -> None:
    """Logits from N(0, 1): their expected weights from 10² to 10³ and from 10³ to 10⁴ tokens away sum to the same."""
    scheme, count = ScaleInvariant(models.geometry()), 10_000
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(1, 64, 1, count, generator=draw)
    here, there = torch.tensor([[count - 1]]), torch.arange(count)[None]
    block = Block(z[..., :1], z[:, :, 0, :, None], z, 1.0, slice(0, 1), here, there, torch.ones(1, 1, 1, count).bool())
    bias = scheme.bias(PositionContext(here, there, causal=True, contiguous=False))
    weights = (z + bias.of_block(block)).double().exp().mean((0, 1, 2)).flip(0)
    near, far = float(weights[100:1000].sum()), float(weights[1000:].sum())
    assert near / far == pytest.approx(1.0, abs=0.2)
    plain = z.double().exp().mean((0, 1, 2)).flip(0)
    assert float(plain[100:1000].sum() / plain[1000:].sum()) < 0.2  # control


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_token_by_token_and_padded(name: str) -> None:
    model: Any = patch_model(tiny(name), "scale_invariant")
    with torch.no_grad():
        assert (models.in_pieces(model, IDS, 30, 37) - model(IDS).logits).abs().max() < 1e-4
        alone = model(IDS[:1, 11:]).logits[0]
        assert (model(IDS, attention_mask=PADDED).logits[0, 11:] - alone).abs().max() < 1e-4
