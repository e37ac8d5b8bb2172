"""Scales of the distance, against dense float64 sums: ``ms_poe`` by head, ``dpe`` by band, ``scale_invariant``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hf_posenc
from hf_posenc import describe, patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import Block
from hf_posenc.errors import OptionOutOfRange, SchemeNotDefined
from hf_posenc.insight.advise.memory import Memory, cache_under
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes import registry
from hf_posenc.schemes.attention_scale.scale_invariant import ScaleInvariant
from hf_posenc.schemes.remap.ms_poe import MsPoE, order_of
from hf_posenc.schemes.rotary.rotary import Rotary

from ..families.tiny import tiny, tokens
from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED
from .naive import Positions

LENGTH = 90
PAIRS, LAYERS = HEAD_DIM // 2, 2
IDS = tokens(40)
PADDED = torch.tensor([[0] * 11 + [1] * 29, [1] * 40])


@dataclass(frozen=True)
class ByAngle(Positions):
    """Positions of which every head and pair has angles of its own, one ``[heads or 1, L, L, pairs]`` a layer."""

    angles: Iterator[Tensor] = field(default_factory=lambda: iter(()))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        angles = next(self.angles)
        rotation = torch.polar(torch.ones_like(angles), angles).expand(len(query), -1, -1, -1)
        q, k = naive.as_complex(query), naive.as_complex(key)
        return torch.einsum("him,hjm,hijm->hij", q, k.conj(), rotation).real


def by_head(*orders: list[int], least: float = 1.2, most: float = 1.8) -> tuple[Tensor, ...]:
    """Angles (i − j) ω / r_h, r from ``least`` to ``most`` along the order of heads."""
    found = []
    for order in orders:
        ratios = torch.empty(HEADS, dtype=torch.float64)
        ratios[order] = torch.linspace(least, most, HEADS, dtype=torch.float64)
        distance = naive.distances(LENGTH).double() / ratios[:, None, None]
        found.append(distance[..., None] * naive.rope(HEAD_DIM))
    return tuple(found)


def by_band(window: int, *groups: int) -> tuple[Tensor, ...]:
    """Angles Δ'_m ω_m, Δ' counted in groups beyond the window, of a size for each band."""
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    places = []
    for m in range(PAIRS):
        group = groups[m * len(groups) // PAIRS]
        far = i // group - j // group + window - window // group
        places.append(torch.where(i - j < window, i - j, far))
    return (torch.stack(places, -1)[None].double() * naive.rope(HEAD_DIM),)


CASES: dict[str, tuple[str, dict[str, Any], Callable[[], tuple[Tensor, ...]]]] = {
    "heads as they stand": ("ms_poe", {}, lambda: by_head([0, 1, 2, 3])),
    "other heads first": ("ms_poe", {"order": [2, 0, 3, 1]}, lambda: by_head([2, 0, 3, 1])),
    "each layer its order": (
        "ms_poe", {"order": [[2, 0, 3, 1], [3, 1, 2, 0]]}, lambda: by_head([2, 0, 3, 1], [3, 1, 2, 0]),
    ),
    "other ratios": ("ms_poe", {"r_min": 1, "r_max": 4}, lambda: by_head([0, 1, 2, 3], least=1, most=4)),
    "groups of Self-Extend": ("dpe", {}, lambda: by_band(16, *[5] * 8)),
    "as of Llama 3": ("dpe", {"groups": [2, 8, 2, 8, 32, 32, 32, 4]}, lambda: by_band(16, 2, 8, 2, 8, 32, 32, 32, 4)),
    "bands of several pairs": ("dpe", {"groups": [1, 7, 9], "window": 10}, lambda: by_band(10, 1, 7, 9)),
}  # fmt: skip


@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("case", CASES)
def test_in_a_whole_model(case: str, kv_heads: int) -> None:
    """Outputs, and gradients of the embeddings."""
    scheme, options, angles = CASES[case]
    model = patch_model(models.llama(num_key_value_heads=kv_heads), scheme, target_length=LENGTH, **options)
    ids, text, plain = models.text(LENGTH), naive.causal(LENGTH), models.llama(num_key_value_heads=kv_heads)
    by_angle = ByAngle(text.seen, text.distance, angles=itertools.cycle(angles()))
    found, gradient = models.with_gradient(model, ids)
    wanted, wanted_gradient = models.dense_with_gradient("llama", plain, ids, by_angle)
    assert (found - wanted).abs().max() < 2e-4
    torch.testing.assert_close(gradient, wanted_gradient, atol=1e-5, rtol=2e-3)
    others = naive.llama(plain, ids, replace(text, frequencies=naive.rope(HEAD_DIM)))
    assert (found - others).abs().max() > 0.1  # control


DECODERS = ("llama", "qwen3", "gemma3_text")
SAME = [
    ("ms_poe", {"r_min": 3.0, "r_max": 3.0}, "pi", {"factor": 3}),
    ("dpe", {"groups": [9, 9], "window": 11}, "self_extend", {"group": 9, "window": 11}),
    ("dpe", {"groups": [1, 1]}, "rope", {}),
]


@pytest.mark.parametrize(
    "scheme",
    [("ms_poe", {}), ("dpe", {"groups": [3, 7, 2], "window": 6}), ("scale_invariant", {})],
    ids=lambda scheme: scheme[0],
)
@pytest.mark.parametrize("name", [*DECODERS, "gpt2"])
def test_token_by_token_and_padded(name: str, scheme: tuple[str, dict[str, Any]]) -> None:
    rotated = "rope+" if name == "gpt2" and scheme[0] != "scale_invariant" else ""
    model = patch_model(tiny(name), rotated + scheme[0], trained_length=16, **scheme[1])
    with torch.no_grad():
        whole = model(IDS).logits
        assert (models.in_pieces(model, IDS, 30, 37) - whole).abs().max() < 1e-4
        alone = model(IDS[:1, 11:]).logits[0]
        assert (model(IDS, attention_mask=PADDED).logits[0, 11:] - alone).abs().max() < 1e-4
        model.set_attn_implementation("eager")
        assert (model(IDS).logits - whole).abs().max() < 1e-4


@pytest.mark.parametrize(("one", "options", "two", "others"), SAME, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("name", [*DECODERS, "modernbert"])
def test_with_one_scale_it_is_another_scheme(
    name: str, one: str, options: dict[str, Any], two: str, others: dict[str, Any]
) -> None:
    masked = name == "modernbert"
    if masked and one == "dpe":
        with pytest.raises(SchemeNotDefined):
            patch_model(tiny(name, masked=True), one)
        return
    build = lambda: tiny(name, masked=masked)  # noqa: E731
    first = patch_model(build(), one, trained_length=16, target_length=20, **options)
    second = patch_model(build(), two, trained_length=16, **others)
    with torch.no_grad():
        assert (first(IDS).logits - second(IDS).logits).abs().max() < 1e-4
        if two != "rope":
            assert (first(IDS).logits - build()(IDS).logits).abs().max() > 0.01  # control


class Tempo(Rotary):
    """RoPE that each head counts in a unit of its own, which is learned."""

    shared = False

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.factors = nn.Parameter(torch.tensor(MsPoE(geometry).factors[0]))

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(by_head=self.factors),)


@pytest.mark.parametrize("kv_heads", [HEADS, 1])
def test_factors_of_heads_can_be_learned(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_SCHEMES", "_CLASSES"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    registry.register_scheme("tempo")(Tempo)
    build = lambda: models.llama(num_key_value_heads=kv_heads)  # noqa: E731
    learned, fixed = patch_model(build(), "tempo"), patch_model(build(), "ms_poe")
    assert (learned(IDS % 90).logits - fixed(IDS % 90).logits).abs().max() < 1e-4
    for gap in hf_posenc.check(build(), "tempo", checks=["finite_differences", "formula_gradients"]):
        assert not gap.failed


def test_keys_are_repeated_for_every_query_head() -> None:
    model = patch_model(models.llama(), "ms_poe")
    with torch.no_grad():
        held = model(IDS % 90, use_cache=True).past_key_values.layers[0]
    assert held.keys.shape[1] == held.values.shape[1] == HEADS
    told = cache_under(scheme_of(model), Memory("float32", 0, 0, token=100, ram=None, gpu=None), 7)
    assert told == 7 * 100 * HEADS // models.KV_HEADS


def test_the_order_of_heads() -> None:
    """The last query of head 1 has one outlier of four keys, that of head 0 has none, and head 2 has two of eight."""
    even, one = torch.full((8,), 1 / 8), torch.tensor([0.86, *[0.02] * 7])
    weights = torch.stack((even, one, torch.tensor([0.44, 0.44, *[0.02] * 6])))[None, :, None]
    assert order_of([weights, weights.flip(1)], outlier=3) == [[2, 1, 0], [0, 1, 2]]


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("ms_poe", {"r_min": 2.0}),
        ("ms_poe", {"order": [0, 1, 2, 2]}),
        ("ms_poe", {"order": [[0, 1, 2, 3]] * 3}),
        ("dpe", {"groups": [2] * 9}),
        ("dpe", {"window": TRAINED}),
    ],
)
def test_options_out_of_range(scheme: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionOutOfRange):
        patch_model(models.llama(), scheme, factor=2, **options)


SWAPPED = ("ms_poe+logn", "logn+ms_poe")


def test_composed_with_a_temperature_rows_are_padded_as_alone() -> None:
    """Keys are repeated by the scheme, and not once more where a mask has the host repeat grouped ones."""
    model, other = (patch_model(tiny("llama"), name, trained_length=16, factor=2) for name in SWAPPED)
    with torch.no_grad():
        found = model(IDS, attention_mask=PADDED).logits
        assert (found[0, 11:] - model(IDS[:1, 11:]).logits[0]).abs().max() < 1e-4
        assert torch.equal(found, other(IDS, attention_mask=PADDED).logits)


def test_no_ratio_is_the_model_itself() -> None:
    assert describe(patch_model(models.llama(), "ms_poe", r_min=1.0, r_max=1.0)).proof.verdict == "identity"
    assert describe(patch_model(models.llama(), "ms_poe")).proof.verdict == "moved"


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
def test_logits_stretched_in_a_whole_model(name: str, scheme: str, tau: float) -> None:
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
