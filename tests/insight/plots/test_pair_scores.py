"""Distances, masks, biases and scores against the papers' formulas, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import dense_blocks, length_rotation
from hf_posenc.errors import OutsideModel
from hf_posenc.insight.plots import numbers, pair_scores
from hf_posenc.insight.plots.models import Shapes
from hf_posenc.insight.plots.pair_scores import call_of
from hf_posenc.insight.plots.registry import Target
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.registry import list_schemes

TRAINED, LENGTH, D = 32, 96, 8
OMEGA = [1e4 ** (-2 * m / D) for m in range(D // 2)]


def table(of_pair: Callable[[int, int], float], length: int = LENGTH, *, causal: bool = True) -> Tensor:
    """A function of (query, key) at every pair; NaN above the diagonal."""
    hidden = math.nan
    return torch.tensor(
        [[of_pair(i, j) if j <= i or not causal else hidden for j in range(length)] for i in range(length)]
    ).double()


def same(found: Tensor, expected: Tensor, **limits: float) -> bool:
    return torch.allclose(found.double(), expected.double(), equal_nan=True, **limits)


@pytest.mark.parametrize(
    ("scheme", "options", "distance"),
    [
        ("rope", {}, lambda i, j: i - j),
        ("leaky_rerope", {"window": 10, "k": 4.0}, lambda i, j: i - j if i - j < 10 else 10 + (i - j - 10) / 4),
        ("self_extend", {"window": 12, "group": 5}, lambda i, j: i - j if i - j < 12 else i // 5 - j // 5 + 10),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_distances_are_the_papers(look: Callable, scheme: str, options: dict, distance: Callable) -> None:
    found = pair_scores.distances(call_of(look(scheme, options, factor=3), LENGTH))[0, 0]
    assert same(found, table(distance), atol=1e-9)


@pytest.mark.parametrize(
    ("scheme", "options", "sees"),
    [
        ("window", {"size": 9, "sinks": 2}, lambda i, j: i - j < 9 or j < 2),
        ("sinks", {"sinks": 3, "recent": 9}, lambda i, j: i - j < 9 or j < 3),
        ("lm_infinite", {"n_global": 3, "n_local": 9}, lambda i, j: i - j < 9 or j < 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_visibility_of_pairs(look: Callable, scheme: str, options: dict, sees: Callable) -> None:
    found = pair_scores.seen(call_of(look(scheme, options, factor=3), LENGTH))[0, 0]
    assert found.tolist() == [[j <= i and sees(i, j) for j in range(LENGTH)] for i in range(LENGTH)]
    (drawn,) = numbers([(scheme, options)], "visible", trained_length=TRAINED, factor=3)
    changed = drawn.numbers["changed"]
    assert torch.equal(~changed.isnan(), found)
    assert bool((changed == 1).any()) == (scheme != "window")  # of sinks alone, far from them
    assert not bool((changed.diagonal() == 1).any())


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_alibi_adds_its_slopes(look: Callable, kind: str) -> None:
    found = pair_scores.added(call_of(look("alibi", kind=kind), 40))[0]
    for h in range(4):
        slope = 2.0 ** (-8 * (h + 1) / 4)
        assert same(found[h], table(lambda i, j, m=slope: -m * abs(i - j), 40, causal=kind == "llama"), atol=1e-5)


def test_scores_of_rope_are_a_mean_of_cosines(look: Callable) -> None:
    found = pair_scores.scores(call_of(look("rope"), 48))[0, 0]
    assert same(found, table(lambda i, j: sum(math.cos((i - j) * w) for w in OMEGA) / len(OMEGA), 48), atol=1e-5)


def test_temperatures(look: Callable) -> None:
    logn = pair_scores.temperatures(look("logn", factor=3), LENGTH)
    expected = [max(1.0, math.log(n) / math.log(TRAINED)) for n in range(1, LENGTH + 1)]
    assert logn[0].tolist() == pytest.approx(expected, rel=1e-6)
    yarn = pair_scores.temperatures(look("yarn", factor=4), 3)
    assert yarn[0].tolist() == pytest.approx([(0.1 * math.log(4) + 1) ** 2] * 3)


NAMES = [record.name for record in list_schemes()]
SHAPES = Shapes(heads=4, head_dim=8, width=16, layers=4, trained_length=16)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_what_the_engine_attends_with(name: str) -> None:
    """Softmax of our scores, with the sink if there is one, equals the weights of the engine's own reference."""
    with SHAPES.target(Entry(name, name), {}) as target:
        try:
            found = random_call(target, 24 if target.scheme.longest is None else 16)
            ours = weights(found)
        except OutsideModel:
            pytest.skip(f"{name} reads a layer's own projections; test_models covers it in a model")
        reference = length_rotation if found.terms.row_rotation is not None else dense_blocks
        assert torch.allclose(ours, reference.attend_with_weights(found)[1][0], atol=1e-6)


def test_other_terms_give_other_scores() -> None:
    """Control: the same scores against a call without its bias."""
    with SHAPES.target(Entry("alibi", "alibi"), {}) as target:
        found = call_of(target, 24)
        bare = replace(found, terms=replace(found.terms, bias=()))
        deviation = weights(found) - dense_blocks.attend_with_weights(bare)[1][0]
    assert deviation.abs().max() > 0.1


def random_call(target: Target, length: int) -> AttentionCall:
    """A call with one random query, one random key, and a random state for each token."""
    scheme, geometry, draws = target.scheme, target.geometry, torch.Generator().manual_seed(0)
    query, key = torch.randn(2, geometry.head_dim, generator=draws)
    hidden = torch.randn(1, length, geometry.width, generator=draws)
    ctx = target.context(scheme.reposition(torch.arange(length)[None], training=False), hidden)
    q, k = (
        one.expand(1, heads, length, -1).clone() for one, heads in ((query, geometry.heads), (key, geometry.kv_heads))
    )
    q, k = scheme.prepare(q, k)
    return pair_scores.attention_call(scheme, q, k, torch.zeros_like(k), ctx)


def weights(found: AttentionCall) -> Tensor:
    scores = pair_scores.scores(found)[0].nan_to_num(-math.inf)
    sink = found.terms.sink
    if sink is None:
        return scores.softmax(-1)
    column = sink[:, None, None].expand(*scores.shape[:2], 1)
    return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
