"""``scale_invariant`` against dense float64 sums, and its premise: ranges of distances that weigh alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Block
from hf_posenc.errors import OptionOutOfRange, SchemeNotDefined
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

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        frequencies = torch.zeros(HEAD_DIM // 2, dtype=torch.float64) if self.frequencies is None else self.frequencies
        z = naive.rotated_scores(query, key, self.distance, frequencies) / math.sqrt(HEAD_DIM)
        squared = 2 * torch.log(self.distance.clamp(min=0).double() / self.tau + 1) + 1
        weights = (squared.sqrt() * z + 1 - squared).masked_fill(~self.seen, -math.inf).softmax(-1)
        return (weights @ value).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("tau", [10.0, 0.5])
@pytest.mark.parametrize("scheme", ["rope+scale_invariant", "none+scale_invariant"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_in_a_whole_model(name: str, scheme: str, tau: float) -> None:
    """Outputs, and gradients of the embeddings."""
    model, ids, text = (
        patch_model(models.MODELS[name][0](), scheme, tau=tau),
        models.text(TRAINED),
        naive.causal(TRAINED),
    )
    embedded = model.get_input_embeddings()(ids).detach()[None].requires_grad_()
    code = torch.zeros(TRAINED, models.WIDTH, dtype=torch.float64, requires_grad=True)
    frequencies = naive.rope(HEAD_DIM) if "rope" in scheme else None
    build, dense = models.MODELS[name]
    found = model(inputs_embeds=embedded).logits[0]
    wanted = dense.__wrapped__(build(), ids, Stretched(text.seen, text.distance, frequencies, code=code, tau=tau))  # type: ignore[attr-defined]
    assert (found - wanted).abs().max() < 2e-4
    for logits in (found, wanted):
        logits.square().mean().backward()
    torch.testing.assert_close(embedded.grad[0].double(), code.grad, atol=1e-5, rtol=2e-3)
    other = dense(build(), ids, Stretched(text.seen, text.distance, frequencies, tau=2 * tau))
    assert (found - other).abs().max() > 0.05  # control


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
        whole, cache, pieces = model(IDS).logits, None, []
        for start, end in ((0, 30), (30, 37), *((n, n + 1) for n in range(37, 40))):
            out = model(IDS[:, start:end], past_key_values=cache, use_cache=True)
            cache, pieces = out.past_key_values, [*pieces, out.logits]
        assert (torch.cat(pieces, 1) - whole).abs().max() < 1e-4
        alone = model(IDS[:1, 11:]).logits[0]
        assert (model(IDS, attention_mask=PADDED).logits[0, 11:] - alone).abs().max() < 1e-4


def test_refusals() -> None:
    with pytest.raises(OptionOutOfRange, match="tau"):
        patch_model(models.llama(), "scale_invariant", tau=0)
    with pytest.raises(SchemeNotDefined):
        patch_model(tiny("modernbert", masked=True), "scale_invariant")
