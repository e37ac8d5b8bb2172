"""Position codes, and their rotations against the papers' formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from hf_posenc.errors import OptionOutOfRange, PositionOutOfTable
from hf_posenc.insight.plots import codes

WIDTH, HEAD_DIM, TRAINED = 16, 8, 32


def omega(dims: int, base: float = 1e4) -> list[float]:
    return [base ** (-2 * m / dims) for m in range(dims // 2)]


OMEGA = omega(HEAD_DIM)


def test_the_code_is_the_papers(look: Callable) -> None:
    expected = [[f(p * w) for w in omega(WIDTH) for f in (math.sin, math.cos)] for p in range(5, 25)]
    assert torch.allclose(
        codes.codes(look("sinusoidal"), 20, start=5).double(), torch.tensor(expected).double(), atol=1e-6
    )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_code_of_a_rotation_is_where_its_hands_point(look: Callable, layout: str) -> None:
    code = codes.codes(look("rope", {"layout": layout}), 9)[7].double()
    cos, sin = ([f(7 * w) for w in omega(HEAD_DIM)] for f in (math.cos, math.sin))
    expected = [*cos, *sin] if layout == "half" else [x for channels in zip(cos, sin, strict=True) for x in channels]
    assert torch.allclose(code, torch.tensor(expected).double(), atol=1e-6)


def test_a_kept_table_is_read(look: Callable) -> None:
    target = look("learned", kind="gpt2")
    assert torch.equal(codes.codes(target, 32), target.table)
    with pytest.raises(PositionOutOfTable):
        codes.codes(target, 33)


def test_schemes_without_codes_are_refused(look: Callable) -> None:
    assert not codes.has_code(look("alibi"))
    with pytest.raises(OptionOutOfRange, match="pairs of positions"):
        codes.codes(look("alibi"), 4)


@pytest.mark.parametrize(
    ("scheme", "options", "dims"),
    [
        ("sinusoidal", {}, WIDTH), ("sinusoidal", {"layout": "concat"}, WIDTH), ("rope", {"layout": "half"}, HEAD_DIM),
        ("rope", {"layout": "interleaved"}, HEAD_DIM),
    ],
)  # fmt: skip
def test_pairs_rotate_by_their_frequency(look: Callable, scheme: str, options: dict, dims: int) -> None:
    rotated = codes.rotated(look(scheme, options), 6, start=90)
    expected = torch.tensor([[p * w % (2 * math.pi) for w in omega(dims)] for p in range(90, 96)])
    assert torch.allclose(rotated, expected.double(), atol=1e-4)


@pytest.mark.parametrize("scheme", [("sinusoidal", {"kind": "sin"}), ("learned", {}), ("binary", {})])
def test_codes_without_rotating_pairs_have_no_hands(look: Callable, scheme: tuple) -> None:
    assert codes.rotated(look(*scheme), 6) is None


def test_rows_of_different_length_have_rotations_of_their_own(look: Callable) -> None:
    dynamic = codes.frequencies(look("dynamic_ntk"), 3 * TRAINED)
    base = 1e4 * 3 ** (HEAD_DIM / (HEAD_DIM - 2))
    assert list(dynamic) == [f"at length {3 * TRAINED}"]
    assert next(iter(dynamic.values())).tolist() == pytest.approx(
        [base ** (-2 * m / HEAD_DIM) for m in range(HEAD_DIM // 2)]
    )
    long = codes.frequencies(look("longrope", {"long_factor": [1.0, 2.0, 3.0, 4.0]}, factor=4), 4 * TRAINED)
    assert long[f"texts under {TRAINED}"].tolist() == pytest.approx(OMEGA)
    assert long[f"texts from {TRAINED} tokens"].tolist() == pytest.approx([w / (m + 1) for m, w in enumerate(OMEGA)])
