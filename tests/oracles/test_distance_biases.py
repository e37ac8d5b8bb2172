"""Biases of the distance alone: relative tables, KERPLE, Sandwich, networks; each against its formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import CannotCombine
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.dyn_bias import DynamicBias
from hf_posenc.schemes.bias.kerple import Kerple
from hf_posenc.schemes.bias.rel_bias import RelativeBias
from hf_posenc.schemes.bias.sandwich import Sandwich

from . import content, models, naive
from .models import HEADS, TRAINED

LENGTH = 3 * TRAINED
LIMIT = 1e-4
CLASSES: dict[str, type[Scheme]] = {
    "rel_bias": RelativeBias, "kerple": Kerple, "sandwich": Sandwich, "dyn_bias": DynamicBias,
}  # fmt: skip
FAR = torch.tensor([-(10**6), -1000, -1, 0, 1, 2, 17, 128, 129, 1000, 10**6 - 1, 10**6])


def stirred(scheme: Scheme, seed: int = 0, by: float = 0.5) -> Any:
    """The scheme with every parameter moved at random, across zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=by)
    return scheme


def bias_of(scheme: Scheme, distance: Tensor, *, causal: bool = True) -> Tensor:
    """What a scheme says of distances ``[…]``, ``[heads, …]``."""
    positions = torch.arange(4)[None]
    bias = scheme.bias(PositionContext(positions, positions, causal=causal, contiguous=False))
    assert isinstance(bias, ToeplitzBias)
    return bias.of_distance(distance)


def table(scheme: RelativeBias, distance: Tensor) -> Tensor:
    """T[clip(j − i, −K, K) + K]."""
    farthest = scheme.max_distance
    rows = [[min(max(-int(d), -farthest), farthest) + farthest for d in line] for line in distance.tolist()]
    return scheme.table.weight.detach().double()[torch.tensor(rows)].permute(2, 0, 1)


def kerple(scheme: Kerple, distance: Tensor) -> Tensor:
    """−r1 ln(1 + r2 |Δ|) or −r1 |Δ|^r2 of numbers held to their bounds."""
    raw = [p.detach().double() for p in (scheme.r1, scheme.r2)]
    held = [torch.log(1 + torch.exp(p)) if scheme.param == "softplus" else p for p in raw]
    low = 0.0 if scheme.param == "softplus" else 0.01
    r1 = held[0].clamp(min=low)[:, None, None]
    r2 = held[1].clamp(min=low, max=2 if scheme.kind == "power" else None)[:, None, None]
    away = distance.abs().double()
    return -r1 * torch.log(1 + r2 * away) if scheme.kind == "log" else -r1 * away**r2


def sandwich(scheme: Sandwich, distance: Tensor) -> Tensor:
    """The inner product of two sinusoidal codes (here of 16 channels), over 8 (h + 1) / H."""
    frequencies = torch.arange(8).double().mul(-2 / 16 * math.log(10_000)).exp()
    product = (distance.double()[..., None] * frequencies).cos().sum(-1)
    return torch.stack([product * HEADS / (8 * (h + 1)) for h in range(HEADS)])


def network(scheme: DynamicBias, distance: Tensor) -> Tensor:
    """Linear and SiLU, written out."""
    x = distance.double()
    x = (torch.sign(x) * torch.log(1 + x.abs()) if scheme.log else x)[..., None]
    *hidden, last = [(layer.weight.detach().double(), layer.bias.detach().double()) for layer in scheme.layers]
    for weight, shift in hidden:
        x = x @ weight.T + shift
        x = x / (1 + torch.exp(-x))
    return (x @ last[0].T + last[1]).permute(2, 0, 1)


@dataclass(frozen=True)
class Case:
    """A scheme with options, and its formula."""

    scheme: str
    formula: Callable[[Any, Tensor], Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    symmetric: bool = True
    layers: int = 2  # how many of the two layers have parameters of their own

    def __str__(self) -> str:
        return self.scheme + "".join(f",{name}={value}" for name, value in self.options.items())


CASES = [
    Case("rel_bias", table, {"max_distance": 20}, symmetric=False),
    Case("rel_bias", table, {"max_distance": 20, "share_layers": True}, symmetric=False, layers=1),
    Case("rel_bias", table, symmetric=False),
    Case("kerple", kerple),
    Case("kerple", kerple, {"param": "softplus"}),
    Case("kerple", kerple, {"kind": "power"}),
    Case("kerple", kerple, {"kind": "power", "param": "softplus", "init": "ones"}),
    Case("sandwich", sandwich, {"d_bar": 16}, layers=1),
    Case("dyn_bias", network, {"width": 16, "depth": 1}, symmetric=False),
    Case("dyn_bias", network, {"width": 8, "depth": 3, "log": True}, symmetric=False),
]


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whole_models(case: Case, model: str) -> None:
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.free(model, LENGTH)
    patched = patch_model(build(), case.scheme, target_length=LENGTH, **case.options)
    schemes = [m for m in patched.modules() if isinstance(m, Scheme)]
    assert len(schemes) == case.layers
    biases = [case.formula(stirred(scheme, seed), text.distance) for seed, scheme in enumerate(schemes)]
    biases = biases * (2 // case.layers)

    def logits(layers: list[Tensor]) -> Tensor:
        return formula(build(), ids, content.with_layers(text, [lambda q, k, b=b: b for b in layers]))

    expected = logits(biases)
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    assert (logits([b * 0 for b in biases]) - expected).abs().max() > 100 * LIMIT  # control: NoPE
    if case.layers == 2:
        assert (logits(biases[::-1]) - expected).abs().max() > 100 * LIMIT  # control: each layer has its own
    if model == "bert":  # control: the other sign of distance
        mirrored = (logits([b.mT for b in biases]) - expected).abs().max()
        assert mirrored <= 1e-9 if case.symmetric else mirrored > 100 * LIMIT


@pytest.mark.parametrize("case", CASES, ids=str)
def test_far_positions(case: Case) -> None:
    """Finite and right at a million tokens, whatever training did to the parameters."""
    for seed in range(5):
        scheme = stirred(CLASSES[case.scheme](models.geometry(), **case.options), seed, by=2.0)
        ours, exact = bias_of(scheme, FAR).double(), case.formula(scheme, FAR[None])[:, 0]
        assert ours.isfinite().all()
        assert ((ours - exact).abs() / exact.abs().clamp(min=1)).max() < 1e-4


@pytest.mark.parametrize("kind", ["log", "power"])
def test_kerple_initialises_as_released_and_recovers_from_its_bounds(kind: str) -> None:
    scheme = Kerple(models.geometry(heads=4000, head_dim=2), kind=kind)
    highest = {"log": (2, 1), "power": (1, 2)}[kind]
    for number, end in zip((n.detach() for n in scheme.numbers()), highest, strict=True):
        low, high, mean = (float(x) for x in (number.min(), number.max(), number.mean()))
        assert 0.00999 <= low < 0.02
        assert 0.99 * end < high <= end
        assert abs(mean - end / 2) < 0.03 * end
    smooth = Kerple(models.geometry(heads=4000, head_dim=2), kind=kind, param="softplus")
    assert abs(float(smooth.numbers()[1].detach().mean()) - highest[1] / 2) < 0.03 * highest[1]
    with torch.no_grad():
        scheme.r1.fill_(-5.0)
    bias_of(scheme, torch.arange(9)).sum().backward()
    assert (scheme.r1.grad != 0).all()  # at its lower bound and not stuck there
    with torch.no_grad():
        smooth.r1.fill_(-5.0)
    assert torch.allclose(smooth.numbers()[0], torch.tensor(-5.0).exp().log1p())  # below the other's bound


def test_powers_of_distance_zero_have_a_gradient() -> None:
    scheme = stirred(Kerple(models.geometry(), kind="power"))
    bias_of(scheme, torch.tensor([0, 0, 3])).sum().backward()
    assert scheme.r2.grad.isfinite().all()


@pytest.mark.parametrize("case", [c for c in CASES if c.scheme != "rel_bias"], ids=str)
def test_functions_of_the_distance_take_fractions(case: Case) -> None:
    """Recipes that move tokens between whole positions."""
    scheme = stirred(CLASSES[case.scheme](models.geometry(), **case.options))
    between = torch.tensor([[0.0, 0.5, 7.25]])
    assert torch.allclose(bias_of(scheme, between).double(), case.formula(scheme, between), atol=1e-4)


def test_tables_refuse_fractions() -> None:
    with pytest.raises(CannotCombine, match="between whole positions"):
        bias_of(RelativeBias(models.geometry()), torch.tensor([0.5]))
