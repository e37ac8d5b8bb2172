"""Frequencies and R(p) against the papers' formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from hf_posenc.insight.plots import rotation_matrices
from hf_posenc.insight.plots.pair_scores import pairs_of

D, TRAINED = 8, 32
OMEGA = [1e4 ** (-2 * m / D) for m in range(D // 2)]


def yarn(s: float) -> list[float]:
    def pair(turns: float) -> float:
        return D * math.log(TRAINED / (2 * math.pi * turns)) / (2 * math.log(1e4))

    low, high = max(0, math.floor(pair(32))), min(D - 1, math.ceil(pair(1)))
    slow = [min(1.0, max(0.0, (m - low) / (high - low))) for m in range(D // 2)]
    return [(1 - g) * w + g * w / s for g, w in zip(slow, OMEGA, strict=True)]


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("rope", OMEGA), ("pi", [w / 4 for w in OMEGA]), ("yarn", yarn(4)),
        ("ntk", [(1e4 * 4 ** (D / (D - 2))) ** (-2 * m / D) for m in range(D // 2)]),
        ("window", OMEGA),  # a scheme that keeps the model's rotation shows that
    ],
)  # fmt: skip
def test_frequencies_are_the_papers(look: Callable, scheme: str, expected: list[float]) -> None:
    found = rotation_matrices.frequencies(look(scheme, factor=4), 4 * TRAINED)
    assert list(found) == [""]
    assert found[""].tolist() == pytest.approx(expected, rel=1e-9)


def test_rows_of_different_length_have_rotations_of_their_own(look: Callable) -> None:
    dynamic = rotation_matrices.frequencies(look("dynamic_ntk"), 3 * TRAINED)
    base = 1e4 * 3 ** (D / (D - 2))
    assert list(dynamic) == [f"at length {3 * TRAINED}"]
    assert next(iter(dynamic.values())).tolist() == pytest.approx([base ** (-2 * m / D) for m in range(D // 2)])
    long = rotation_matrices.frequencies(look("longrope", {"long_factor": [1.0, 2.0, 3.0, 4.0]}, factor=4), 4 * TRAINED)
    assert long[f"rows under {TRAINED}"].tolist() == pytest.approx(OMEGA)
    assert long[f"rows from {TRAINED}"].tolist() == pytest.approx([w / (m + 1) for m, w in enumerate(OMEGA)])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_matrix_rotates_pairs_and_exponents_add(look: Callable, layout: str) -> None:
    target = look("rope", {"layout": layout})
    expected = torch.zeros(D, D)
    for m, w in enumerate(OMEGA):
        a, b = (m, m + D // 2) if layout == "half" else (2 * m, 2 * m + 1)
        expected[a, a] = expected[b, b] = math.cos(3 * w)
        expected[a, b], expected[b, a] = -math.sin(3 * w), math.sin(3 * w)
    three, five, eight = (rotation_matrices.matrix(target, p, 1) for p in (3, 5, 8))
    assert torch.allclose(three, expected, atol=1e-6)
    assert torch.allclose(three @ five, eight, atol=1e-5)


def test_scores_of_a_matrix_are_those_of_attention(look: Callable) -> None:
    """R(i) q · R(j) k, by the matrices, equals what the attention call gives."""
    target = look("yarn", factor=4)
    ones = torch.full((D,), D**-0.25)
    scores = pairs_of(target, 12).scores()[0]
    rotated = [rotation_matrices.matrix(target, p, 12) @ ones for p in range(12)]
    scale = (0.1 * math.log(4) + 1) ** 2 / math.sqrt(D)
    assert float(scores[11, 4]) == pytest.approx(float(rotated[11] @ rotated[4]) * scale, rel=1e-5)
