"""``pope`` against its formula over all pairs in float64: whole models from the definition, and other families.

The latter are models without positions, under an attention function of transformers' kind that has the formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc import patch_model
from hf_posenc.schemes.rotary.pope import PoPE

from ..families.tiny import tiny, tokens
from . import models, naive

LENGTH, BASE, LIMIT = 4 * models.TRAINED, 500.0, 1e-4
OTHERS = {"qwen3": 16, "gemma3_text": 16, "modernbert": 16, "gpt_neox": 4}  # rotated channels of 16


def scores(query: Tensor, key: Tensor, delta: Tensor, distance: Tensor) -> Tensor:
    """Σ_c ln(1 + e^q_c) ln(1 + e^k_c) cos(δ_c − ω_c (i − j)), ``[…, heads, L, d]`` to ``[…, heads, L, L]``."""
    frequencies = BASE ** -(torch.arange(query.shape[-1], dtype=torch.float64) / query.shape[-1])
    delta = delta.clamp(-2 * math.pi, 0).repeat_interleave(query.shape[-3] // len(delta), 0)
    phases = delta[:, None, None] - distance[..., None] * frequencies
    return torch.einsum("...hic,...hjc,hijc->...hij", query.exp().log1p(), key.exp().log1p(), phases.cos())


@dataclass(frozen=True)
class Polar(naive.Positions):
    """PoPE; ``deltas`` yields those of each layer in turn, ``[kv_heads, d]``."""

    deltas: Iterator[Tensor] | None = None

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return scores(query, key, next(self.deltas), self.distance)  # type: ignore[arg-type]


def patched(model: Any) -> tuple[Any, list[Tensor]]:
    """A patched model, and its phases, which are drawn within their bounds and beyond."""
    patch_model(model, "pope", factor=4, base=BASE, bias_init="uniform")
    deltas = [module.delta for module in model.modules() if isinstance(module, PoPE)]
    assert all(-2 * math.pi <= delta.min() < delta.max() <= 0 for delta in deltas)
    for number, delta in enumerate(deltas):
        delta.data = 4 * torch.randn(delta.shape, generator=torch.Generator().manual_seed(number)) - math.pi
    return model, deltas


@pytest.mark.parametrize("name", models.MODELS)
def test_whole_models(name: str) -> None:
    build, formula = models.MODELS[name]
    (model, deltas), ids, text = patched(build()), models.text(LENGTH), naive.free(name, LENGTH)
    found = models.logits(model, ids)
    for change in (1.0, 0.0):  # without phases: a control
        theirs = Polar(text.seen, text.distance, deltas=iter([change * delta.detach().double() for delta in deltas]))
        assert ((found - formula(build(), ids, theirs)).abs().max() <= LIMIT) == (change == 1.0)
    if name != "bert":
        assert (models.in_pieces(model, ids[None], 70, 77)[0] - found).abs().max() <= LIMIT


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_families(name: str, backend: str) -> None:
    """Logits and gradients under windows, norms of queries and keys, and a rotation of a part of each head."""
    ids, (ours, deltas), d, used = tokens(40), patched(tiny(name, masked=name == "modernbert")), OTHERS[name], []
    ours.set_attn_implementation(backend)

    def formula(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, *, scaling: float, **rest: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        used.append(deltas[len(used)].detach().double().requires_grad_())
        z = scores(q[..., :d], k[..., :d], used[-1], naive.distances(40)) + q[..., d:] @ k[..., d:].mT
        return ((z * scaling + (0 if mask is None else mask)).softmax(-1) @ v).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("of_pope", formula)
    ALL_MASK_ATTENTION_FUNCTIONS.register("of_pope", eager_mask)
    theirs = patch_model(tiny(name, masked=name == "modernbert"), "none", factor=4).double()
    theirs.set_attn_implementation("of_pope")
    found, wanted = (model(ids).logits for model in (ours, theirs))
    assert (found - wanted).abs().max() < LIMIT
    for logits in (found, wanted):
        logits.square().mean().backward()
    one, two = (model.get_input_embeddings().weight.grad.double() for model in (ours, theirs))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-3)
    torch.testing.assert_close([x.grad.double() for x in deltas], [x.grad for x in used], atol=1e-6, rtol=1e-3)
