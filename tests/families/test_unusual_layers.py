"""Layers that call their attention in ways of their own, each with a scheme that a wrong answer would show under."""

from __future__ import annotations

import pytest

from . import test_families

pytestmark = pytest.mark.always


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("stablelm", "sinks"),  # hands on no keyword, so that attention looks its forward pass up
        ("nemotron", "fox"),
        ("zamba", "alibi"),  # attention takes twice the width, and is told the number of its layer in each call
        ("zamba2", "t5"),
        ("zaya", "self_extend"),  # a dictionary of masks, one of them for a convolution; layers with a window beside
        ("zaya", "sinks"),
        ("beam", "alibi"),  # a factor of positions, and layers that count themselves
    ],
)
def test_every_way_to_read_a_text(name: str, scheme: str) -> None:
    test_families.test_every_way_to_read_a_text(name, scheme)
