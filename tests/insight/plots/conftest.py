"""Schemes to plot, built for small shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hf_posenc.insight.plots.models import Shapes
from hf_posenc.insight.plots.registry import Target
from hf_posenc.schemes.entry import Entry

Look = Callable[..., Target]


@pytest.fixture
def look() -> Iterator[Look]:
    """``look("yarn", factor=4)``: the scheme for a model of 4 heads × 8 channels, width 16, trained at 32 tokens."""
    with ExitStack() as stack:

        def at(scheme: Any, options: dict[str, Any] | None = None, *, kind: Any = None, **lengths: Any) -> Target:
            shapes = Shapes(kind=kind, heads=4, head_dim=8, width=16, layers=2, trained_length=32)
            return stack.enter_context(shapes.target(Entry(str(scheme), scheme, options or {}), lengths))

        yield at
