"""Heads of a known kind are classified as such, and others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import Scheme, patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.insight.probe.variant import Variant, measure
from hf_posenc.schemes import registry

Build = Callable[..., Any]
STRONG = 200.0  # above all scores of the small models


class Fixed(Scheme):
    """Every head looks at one distance."""

    def __init__(self, geometry: Geometry, *, at: int = 1) -> None:
        super().__init__(geometry)
        self.at = at

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return ToeplitzBias(lambda d: (STRONG * (d == self.at)).float().expand(self.geometry.heads, *d.shape))


class First(Scheme):
    """Every head looks at the first token."""

    def bias(self, ctx: PositionContext) -> KeyBias:
        return KeyBias(STRONG * (ctx.key_positions == 0)[:, None].double().expand(-1, self.geometry.heads, -1))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    registry.register_scheme("fixed_distance")(Fixed)
    registry.register_scheme("first_token")(First)


def variant_of(model: Any, ids: Tensor) -> Variant:
    return measure(model, [ids], "test", lambda doing: None, trained_length=16, rows=256, seed=0)


@pytest.mark.parametrize(
    ("kind", "at", "called"),
    [
        ("llama", 1, "previous token"),
        ("llama", 3, "distance 3"),
        ("gpt2", 1, "previous token"),
        ("bert", -1, "next token"),
        ("bert", 0, "itself"),
    ],
)
def test_heads_at_one_distance(kind: str, at: int, called: str, build: Build, ids: Tensor) -> None:
    model = build(kind)
    patch_model(model, "fixed_distance", at=at)
    for head in variant_of(model, ids).heads:
        assert head.kind == called
        assert head.share > 0.95  # the first or last row of an encoder has no such key
        assert head.strongest == at
        assert head.uses_position == (at != 0)  # attention to the token itself does not depend on positions


def test_the_first_token(build: Build, ids: Tensor) -> None:
    model = build("llama")
    patch_model(model, "first_token")
    variant = variant_of(model, ids)
    assert {head.kind for head in variant.heads} == {"first token"}
    assert variant.sinks == pytest.approx([1.0, 1.0])
    assert all(head.beyond > 0.99 for head in variant.heads)  # rows 24 … 47 at distances of the trained 16 and more


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_without_positions_no_head_uses_them(kind: str, build: Build, ids: Tensor) -> None:
    """Control of the shuffle: the same model unpatched does use them."""
    model = build(kind)
    before = variant_of(model, ids)
    assert all(head.uses_position for head in before.heads)
    patch_model(model, "none")
    variant = variant_of(model, ids)
    assert float(variant.direct.max()) == 0.0
    assert float(variant.total.max()) < 1e-5
    assert not any(head.uses_position for head in variant.heads)


def test_positions_in_the_input_reach_heads_through_it_alone(build: Build, ids: Tensor) -> None:
    """GPT-2 and BERT as they come know position from their states; Llama turns in every layer."""
    for kind in ("gpt2", "bert"):
        variant = variant_of(build(kind), ids)
        assert float(variant.direct.max()) == 0.0
        assert float(variant.total.min()) > 0.1
    variant = variant_of(build("llama"), ids)
    assert float(variant.direct.min()) > 0.01
    assert torch.allclose(variant.direct[0], variant.total[0])  # nothing before the first layer knows position
