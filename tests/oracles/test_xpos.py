"""xPos against its formula in float64, where the factors themselves would overflow float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model, scheme_of
from hf_posenc.schemes.rotary.xpos import XPos

from . import models, naive
from .models import HEAD_DIM, TRAINED
from .naive import Positions


def fading(gamma: float = 0.4) -> Tensor:
    """ζ_m of every pair, float64."""
    m = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
    return (2 * m + gamma * HEAD_DIM) / ((1 + gamma) * HEAD_DIM)


@dataclass(frozen=True)
class Fading(Positions):
    """Every pair of channels fades by ζ^(Δ / B) while it turns."""

    scale_base: float = 512.0
    gamma: float = 0.4

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        distance = self.distance.clamp(min=0).double()[..., None]
        rotation = torch.polar(fading(self.gamma) ** (distance / self.scale_base), distance * naive.rope(HEAD_DIM))
        q, k = naive.as_complex(query), naive.as_complex(key)
        return torch.einsum("him,hjm,ijm->hij", q, k.conj(), rotation).real


@pytest.mark.parametrize(("scale_base", "gamma"), [(512.0, 0.4), (20.0, 1.0), (2.0, 0.4)])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_whole_models(model: str, scale_base: float, gamma: float) -> None:
    """With B = 2 a text of 128 tokens spans many chunks: the factors of its ends are e^±80 apart."""
    build, formula = models.MODELS[model]
    ids, free = models.text(4 * TRAINED), naive.causal(4 * TRAINED)
    patched = patch_model(build(), "xpos", scale_base=scale_base, gamma=gamma, factor=4)
    expected = formula(build(), ids, Fading(free.seen, free.distance, scale_base=scale_base, gamma=gamma))
    assert (models.logits(patched, ids) - expected).abs().max() < 1e-4
    slower = formula(build(), ids, Fading(free.seen, free.distance, scale_base=scale_base, gamma=2 * gamma))
    assert (slower - expected).abs().max() > 1e-3  # control


def test_gradients_across_chunks() -> None:
    """Training over many chunks: the same gradients as from one table of factors, in float64."""
    ids = models.text(2 * TRAINED)[None]
    patched = patch_model(models.llama(), "xpos", scale_base=4.0, factor=2)
    assert scheme_of(patched).chunk < TRAINED
    patched(ids).logits.square().mean().backward()
    by_engine = patched.model.layers[0].self_attn.k_proj.weight.grad.clone()
    patched.zero_grad()
    patched.set_attn_implementation("eager")
    patched(ids).logits.square().mean().backward()
    reference = patched.model.layers[0].self_attn.k_proj.weight.grad
    assert (by_engine - reference).abs().max() < 1e-5 * reference.abs().max()


def test_factors_stay_bounded() -> None:
    """A key at a million is scaled as one of the first chunk is."""
    scheme = XPos(models.geometry(trained=2048))
    positions = torch.tensor([[0, 10**6, 10**6 + scheme.chunk - 1]])
    decay_steps = scheme.key_decay_steps(positions)
    assert int(decay_steps.max()) < scheme.chunk
    assert scheme.decay[0] * scheme.chunk <= 5.0
    assert scheme.decay[0] == pytest.approx(-math.log(0.4 / 1.4) / 512)
