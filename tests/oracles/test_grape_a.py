"""``grape_a`` against dense float64 sums, with its gradients, and against ALiBi, which constant gates are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model

from . import content, models, naive
from .models import HEAD_DIM, HEADS, TRAINED


def penalty(own: dict[str, Tensor], distance: Tensor) -> content.OfLayer:
    """A penalty on distance, with the parameters of one layer: by name, float64."""

    def of(query: Tensor, key: Tensor) -> Tensor:
        rate = torch.zeros(1, 1, 1, dtype=torch.float64)
        for name, x in (("v", query[:, :, None]), ("u", key[:, None])):
            if name in own:
                direction = own[name] / own[name].square().sum(-1, keepdim=True).sqrt()
                logit = (x * direction[:, None, None]).sum(-1) / math.sqrt(HEAD_DIM)
                rate = rate + (1 + logit.exp()).log()
        return -distance * (1 + own["a"].exp()).log()[:, None, None] * naive.slopes(HEADS) * rate

    return of


def schemes_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "GrapeA"]


@pytest.mark.parametrize("gates", ["both", "query", "key"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_in_a_whole_model(name: str, gates: str) -> None:
    """Outputs, and gradients of the embeddings and of what is learned."""
    build, _ = models.MODELS[name]
    model, ids, text = patch_model(build(), "grape_a", gates=gates), models.text(2 * TRAINED), naive.causal(2 * TRAINED)
    draw = torch.Generator().manual_seed(0)
    for parameter in (one for scheme in schemes_of(model) for one in scheme.parameters()):
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw))
    layers = [
        {key: one.detach().double().requires_grad_() for key, one in scheme.named_parameters()}
        for scheme in schemes_of(model)
    ]
    of_layers = [penalty(own, text.distance) for own in layers]
    wanted, wanted_gradient = models.dense_with_gradient(name, build(), ids, content.with_layers(text, of_layers))
    found, gradient = models.with_gradient(model, ids)
    assert (found - wanted).abs().max() < 2e-4
    torch.testing.assert_close(gradient, wanted_gradient, atol=1e-5, rtol=2e-3)
    for scheme, layer in zip(schemes_of(model), layers, strict=True):
        for key, one in scheme.named_parameters():
            torch.testing.assert_close(one.grad.double(), layer[key].grad, atol=1e-5, rtol=2e-3, msg=key)
    other, _ = models.dense_with_gradient(name, build(), ids, content.with_layers(text, of_layers[::-1]))
    assert (found - other).abs().max() > 0.01  # control: each layer has its own


def test_constant_gates_are_alibi() -> None:
    """Directions that no query and key has: both gates are ln 2, and a makes ω their reciprocal."""
    model, ids = patch_model(models.llama(), "grape_a"), models.text(2 * TRAINED)
    for scheme in schemes_of(model):
        scheme.u.data.zero_()
        scheme.v.data.zero_()
        scheme.a.data.fill_(math.log(math.expm1(0.5 / math.log(2))))
    expected = models.logits(patch_model(models.llama(), "alibi"), ids)
    assert (models.logits(model, ids) - expected).abs().max() < 1e-4
    scheme.a.data.add_(1.0)
    assert (models.logits(model, ids) - expected).abs().max() > 0.01  # control


def test_token_by_token() -> None:
    model, ids = patch_model(models.llama(), "grape_a"), models.text(TRAINED + 4)
    pieces = models.in_pieces(model, ids[None], 20, TRAINED)[0]
    assert (pieces - models.logits(model, ids)).abs().max() < 1e-4
