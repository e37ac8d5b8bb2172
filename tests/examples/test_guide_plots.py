"""Plots of third parties: the examples draw, and their numbers are the formulas'."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_posenc.insight.plots import Shapes, Target, numbers, registry, show
from hf_posenc.schemes.entry import Entry

from ..example_modules import example_module

OMEGA = [1e4 ** (-2 * m / 16) for m in range(8)]
NAMES = ("dimensions", "product", "path", "grid")


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with example_module("guide_plots") as module:
        yield module
    for name in NAMES:
        del registry.PLOTS[name]


def look(scheme: str, options: dict[str, Any]) -> Target:
    with Shapes(heads=4, head_dim=8, width=16, trained_length=32).target(Entry(scheme, scheme, options), {}) as target:
        return target


def test_products_are_those_of_the_paper_and_even(example: ModuleType) -> None:
    found = example.products(look("sinusoidal", {}), 41, origin=20)
    expected = [sum(math.cos((p - 20) * w) for w in OMEGA) / (16 / 2) for p in range(41)]
    assert torch.allclose(found, torch.tensor(expected).double(), atol=1e-5)
    assert torch.allclose(found, found.flip(0), atol=1e-5)


def test_products_of_sines_alone_depend_on_where_they_stand(example: ModuleType) -> None:
    """Control: no function of the distance, and not even."""
    found = example.products(look("sinusoidal", {"kind": "sin"}), 41, origin=20)
    assert (found - found.flip(0)).abs().max() > 0.1


def test_the_path_of_one_hand_is_a_circle(example: ModuleType) -> None:
    target = look("sinusoidal", {"schedule": "custom", "frequencies": [2 * math.pi / 10] + [1e-12] * 7})
    plane, shares = example.path(target, 10)
    assert torch.allclose(plane.norm(dim=1), torch.ones(10).double(), atol=1e-5)
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)


def test_where_directions_tie_the_plane_does_not_depend_on_the_factorisation(example: ModuleType) -> None:
    """All five digits of 0 … 31 vary alike: LAPACKs differ in which basis of that space they return."""
    plane, shares = example.path(look("binary", {"values": "pm1"}), 32)
    assert shares == pytest.approx((0.2, 0.2), abs=1e-9)
    assert len({tuple(point) for point in plane.round(decimals=6).tolist()}) == 32
    other = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    size, towards = torch.ones(5).double(), torch.arange(5).double()
    one, two = (example.among_ties(towards, size, basis, 0) for basis in (torch.eye(5).double(), other))
    assert torch.allclose(one, two)


def test_patches_of_an_image_see_rows_and_columns(example: ModuleType) -> None:
    found = example.patch_scores(look("rope_nd", {}), 5, 7, 2, 3)
    fast = [100.0 ** (-2 * m / 4) for m in range(2)]
    expected = [
        [(sum(math.cos((y - 2) * w) for w in fast) + sum(math.cos((x - 3) * w) for w in fast)) / 4 for x in range(7)]
        for y in range(5)
    ]
    assert torch.allclose(found, torch.tensor(expected), atol=1e-5)
    text = example.patch_scores(look("rope", {}), 5, 7, 2, 3)  # control: line by line, the patch above is 7 tokens away
    assert float(text[1, 3]) == pytest.approx(sum(math.cos(7 * w) for w in OMEGA[::2]) / 4, abs=1e-5)
    assert (text - found).abs().max() > 0.1


@pytest.mark.parametrize(("name", "lines"), [("dimensions", [3, 3]), ("product", [4]), ("path", [33, 33])])
def test_they_are_shown_as_any_other(example: ModuleType, name: str, lines: list[int]) -> None:
    """Path: a line, and a dot for each position; product: two curves, and two axes."""
    pytest.importorskip("matplotlib", reason="an extra")
    assert [sheet.label for sheet in numbers("binary,rope", name, length=8)] == ["binary", "rope"]
    panels = [axes for axes in show("norm01,sinusoidal", name)[name].axes if axes.get_xlabel()]
    assert [len(axes.lines) for axes in panels] == lines
