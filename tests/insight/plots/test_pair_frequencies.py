"""Frequencies against the papers' formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hf_posenc.insight.plots import pair_frequencies

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
    found = pair_frequencies.frequencies(look(scheme, factor=4), 4 * TRAINED)
    assert list(found) == [""]
    assert found[""].tolist() == pytest.approx(expected, rel=1e-9)


def test_rows_of_different_length_have_rotations_of_their_own(look: Callable) -> None:
    dynamic = pair_frequencies.frequencies(look("dynamic_ntk"), 3 * TRAINED)
    base = 1e4 * 3 ** (D / (D - 2))
    assert list(dynamic) == [f"at length {3 * TRAINED}"]
    assert next(iter(dynamic.values())).tolist() == pytest.approx([base ** (-2 * m / D) for m in range(D // 2)])
    long = pair_frequencies.frequencies(look("longrope", {"long_factor": [1.0, 2.0, 3.0, 4.0]}, factor=4), 4 * TRAINED)
    assert long[f"rows under {TRAINED}"].tolist() == pytest.approx(OMEGA)
    assert long[f"rows from {TRAINED}"].tolist() == pytest.approx([w / (m + 1) for m, w in enumerate(OMEGA)])
