"""Two biases of content and distance, ``grape_a`` and Ricker wavelets, against dense float64 sums."""

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
