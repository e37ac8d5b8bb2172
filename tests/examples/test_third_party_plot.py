"""A plot of third parties: the example draws, and its numbers are the formula's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_posenc.insight.plots import Shapes, Target, numbers, registry
from hf_posenc.schemes.entry import Entry

from ..example_modules import example_module


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with example_module("third_party_plot") as module:
        yield module
    del registry._PLOTS["path"]


def look(scheme: str, options: dict[str, Any]) -> Target:
    with Shapes(heads=4, head_dim=8, width=16, trained_length=32).target(Entry(scheme, scheme, options), {}) as target:
        return target


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


def test_it_is_shown_as_any_other(example: ModuleType) -> None:
    pytest.importorskip("matplotlib", reason="an extra")
    from hf_posenc.insight.plots import show

    assert [sheet.label for sheet in numbers("binary,rope", "path", length=8)] == ["binary", "rope"]
    panels = [axes for axes in show("binary,sinusoidal", "path")["path"].axes if axes.get_title("left")]
    assert [len(axes.lines) for axes in panels] == [33, 33]  # a line, and a dot for each position
