"""Biases of distance alone, T5's buckets, tables, KERPLE, Sandwich, networks and FIRE: each against its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.dyn_bias import DynamicBias
from hf_posenc.schemes.bias.fire import FIRE
from hf_posenc.schemes.bias.kerple import Kerple
from hf_posenc.schemes.bias.rel_bias import RelativeBias
from hf_posenc.schemes.bias.sandwich import Sandwich
from hf_posenc.schemes.bias.t5 import T5Bias, thresholds

from . import content, models, naive
from .models import HEADS, TRAINED

LENGTH = 3 * TRAINED
LIMIT = 1e-4
CLASSES: dict[str, type[Scheme]] = {
    "rel_bias": RelativeBias, "kerple": Kerple, "sandwich": Sandwich, "dyn_bias": DynamicBias,
}  # fmt: skip
FAR = torch.tensor([-(10**6), -1000, -1, 0, 1, 2, 17, 128, 129, 1000, 10**6 - 1, 10**6])


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
    biases = [case.formula(content.stirred(scheme, seed), text.distance) for seed, scheme in enumerate(schemes)]
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
        scheme = content.stirred(CLASSES[case.scheme](models.geometry(), **case.options), seed, by=2.0)
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
    scheme = content.stirred(Kerple(models.geometry(), kind="power"))
    bias_of(scheme, torch.tensor([0, 0, 3])).sum().backward()
    assert scheme.r2.grad.isfinite().all()


@pytest.mark.parametrize("case", [c for c in CASES if c.scheme != "rel_bias"], ids=str)
def test_functions_of_the_distance_take_fractions(case: Case) -> None:
    """Recipes that move tokens between whole positions."""
    scheme = content.stirred(CLASSES[case.scheme](models.geometry(), **case.options))
    between = torch.tensor([[0.0, 0.5, 7.25]])
    assert torch.allclose(bias_of(scheme, between).double(), case.formula(scheme, between), atol=1e-4)


SIZES = [(32, 128), (16, 40), (8, 9), (64, 512), (320, 800), (4, 1000), (32, 20)]


def scheme(causal: bool, buckets: int = 32, max_distance: int = 128) -> T5Bias:
    return T5Bias(models.geometry(causal=causal), num_buckets=buckets, max_distance=max_distance)


@pytest.mark.parametrize(("buckets", "max_distance"), SIZES)
@pytest.mark.parametrize("causal", [True, False])
def test_equals_transformers(buckets: int, max_distance: int, causal: bool) -> None:
    distance = torch.arange(-1000, 1001)
    theirs = T5Attention._relative_position_bucket(-distance, not causal, buckets, max_distance)
    ours = scheme(causal, buckets, max_distance).bucket(distance)
    wrong = distance[ours != theirs].abs().tolist()
    # Their float32 logarithm may fall below an exact power; there, and nowhere else, the exact bucket is one higher.
    assert set(wrong) <= exact_powers(buckets if causal else buckets // 2, max_distance)
    assert ours.min() >= 0
    assert ours.max() < buckets


def exact_powers(buckets: int, max_distance: int) -> set[int]:
    """Whole distances at which a bucket starts exactly: (n / E)^K = (M / E)^j."""
    exact, found = buckets // 2, set()
    wide = buckets - exact
    for j in range(wide + 1):
        goal = Fraction(max_distance, exact) ** j
        near = round(exact * float(goal) ** (1 / wide))
        found |= {n for n in (near - 1, near, near + 1) if Fraction(n, exact) ** wide == goal}
    return found


@pytest.mark.parametrize(("exact", "ratio"), [(2, 2), (8, 2), (8, 3), (16, 2), (5, 7)])
def test_thresholds_at_exact_powers(exact: int, ratio: int) -> None:
    """E · r^j, r whole, starts bucket E + j: not one later, as a rounded logarithm may have it."""
    starts = thresholds(2 * exact, exact * ratio**exact)
    assert starts[:exact] == tuple(range(1, exact + 1))
    assert starts[exact - 1 :] == tuple(exact * ratio**j for j in range(exact))


def test_bias_is_a_lookup_with_a_gradient() -> None:
    t5 = scheme(causal=True)
    positions = torch.arange(40)[None]
    bias = t5.bias(PositionContext(positions, positions, causal=True, contiguous=True))
    distance = positions[0, :, None] - positions[0]
    values = bias.of_distance(distance)
    assert values.shape == (models.HEADS, 40, 40)
    assert values.dtype == torch.float32
    assert torch.equal(values[2, 30, 3], t5.table.weight[t5.bucket(torch.tensor(27)), 2])
    values.sum().backward()
    counts = torch.bincount(t5.bucket(distance).flatten(), minlength=32)
    assert torch.equal(t5.table.weight.grad[:, 0], counts.float())


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


def fire_of(scheme: FIRE, length: int, *, causal: bool, start: int = 0, rows: slice = slice(None)) -> Tensor:
    """What the scheme says of a text that starts at some position, ``[heads, rows, L]``."""
    ctx = content.context(torch.arange(start, start + length)[None], causal=causal)
    query = torch.zeros(1, HEADS, length, 4)
    return scheme.bias(ctx).of_block(content.block(ctx, query, query, rows))[0].detach()


@pytest.mark.parametrize("causal", [True, False])
def test_values_and_gradients_are_those_of_the_layers(causal: bool) -> None:
    """The hidden layer that is looked up instead of computed, with units that are always off, on, or vertical."""
    for seed in range(4):
        scheme = content.stirred(FIRE(models.geometry(causal=causal), tau=20.0), seed)
        with torch.no_grad():
            scheme.inner.weight[:3] = 0.0
            scheme.inner.bias[2] = 0.0
            scheme.inner.weight[5], scheme.inner.weight[6] = 1e-38, -1e-38
        positions = torch.arange(70)[None]
        reach = positions if causal else torch.full((1, 1), 69)
        distance = positions[:, :, None] - positions[:, None]
        ours = scheme.bias_at(distance, reach)
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
    scheme = content.stirred(FIRE(models.geometry(), tau=64.0))
    with torch.no_grad():
        scheme.multiplier.fill_(1.0)
    near = fire_of(scheme, 30, causal=True)
    assert torch.equal(fire_of(scheme, 30, causal=True, start=30), near)
    assert (fire_of(scheme, 30, causal=True, start=100) - near).abs().max() > 1e-2  # control


def test_an_encoder_counts_the_real_tokens() -> None:
    """A text alone, and padded in a batch with a longer one."""
    scheme, mask = content.stirred(FIRE(models.geometry(causal=False), tau=8.0)), torch.ones(2, 70, dtype=torch.bool)
    mask[0, :30] = False
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ctx = PositionContext(positions, positions, causal=False, contiguous=False, real_keys=mask)
    query = torch.zeros(2, HEADS, 70, 4)
    batch = scheme.bias(ctx).of_block(content.block(ctx, query, query)).detach()
    assert torch.allclose(batch[0, :, 30:, 30:], fire_of(scheme, 40, causal=False), atol=1e-6)
    assert torch.allclose(batch[1], fire_of(scheme, 70, causal=False), atol=1e-6)
    assert (batch[0, :, 30:, 30:] - batch[1, :, :40, :40]).abs().max() > 1e-2  # control


@pytest.mark.parametrize("spoil", ["c", "multiplier", "both"])
def test_no_parameter_value_gives_infinity(spoil: str) -> None:
    """c and τ at zero, below it, and huge; a million tokens away."""
    for value in (0.0, -1e-30, -3.0, 1e30):
        scheme = content.stirred(FIRE(models.geometry()))
        with torch.no_grad():
            for name in ("c", "multiplier") if spoil == "both" else (spoil,):
                getattr(scheme, name).fill_(value)
        positions = torch.tensor([[0, 1, 10**6 - 1, 10**6]])
        bias = scheme.bias_at(positions[:, :, None] - positions[:, None], positions)
        assert bias.isfinite().all()
        grads = torch.autograd.grad(bias.sum(), list(scheme.parameters()))
        assert all(grad.isfinite().all() for grad in grads)
