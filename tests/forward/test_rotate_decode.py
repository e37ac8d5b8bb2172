"""One token rotated in one operation, bit by bit as region by region; and what is not kept from call to call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import HEADS, KV_HEADS, WIDTH, tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.forward.rotate_decode import DecodeRotation
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.shared_terms import FixedPart, fixed_part
from hf_posenc.schemes.base import Scheme

DIM = WIDTH // HEADS
ROTATING = ("rope", "yarn", "partial", "longrope", "rerope", "leaky_rerope", "self_extend", "string", "dca", "sinks")


def scheme_of(name: str, **options: Any) -> Scheme:
    return patch_model(tiny_model("llama"), name, factor=4, **options).model.layers[0].self_attn.scheme


def fixed(scheme: Scheme) -> FixedPart:
    return fixed_part(scheme, True)


def at(position: int) -> PositionContext:
    places = torch.arange(position + 1)[None]
    return PositionContext(places[:, -1:], places, True, True, first=position)


def drawn(heads: int, length: int = 1, batch: int = 2) -> Tensor:
    return torch.randn(batch, heads, length, DIM, generator=torch.Generator().manual_seed(heads))


@pytest.mark.parametrize("name", ROTATING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_as_region_by_region(name: str, dtype: torch.dtype) -> None:
    scheme = scheme_of(name)
    rotation = fixed(scheme).rotation
    assert isinstance(rotation, DecodeRotation)
    q, k, v = (drawn(heads).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    for position in (3, 70, 40):
        queries, copies, values = rotation.at(position, q.device)(q, k, v)
        expected = rotate_regions(region_rotations(scheme, at(position)), q, k, v)
        assert all(torch.equal(one, two) for one, two in zip(queries, expected[0], strict=True))
        assert all(torch.equal(one, two) for one, two in zip(copies, expected[1], strict=True))
        assert values is v


class ByPosition(Scheme):
    """Regions that depend on the positions of a call, or hold them."""

    def __init__(self, scheme: Scheme, *, hold: bool) -> None:
        super().__init__(scheme.geometry)
        self.record, self.hold = scheme.record, hold  # type: ignore[misc]

    def rotation(self) -> Rotation:
        return Rotation((1.0, 0.5))

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        if self.hold:
            return (Region(query_at=lambda positions: positions - ctx.first),)
        return (Region(Band(None, int(ctx.key_positions[0, -1]))),)


@pytest.mark.parametrize("hold", [True, False])
def test_regions_of_one_call_are_not_kept(hold: bool) -> None:
    found = fixed(ByPosition(scheme_of("rope"), hold=hold))
    assert found.terms is None
    assert found.rotation is None


class WithSink(Scheme):
    """A sink's logits as a buffer, which moves with the model."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme.geometry)
        self.record = scheme.record  # type: ignore[misc]
        self.register_buffer("logits", torch.zeros(HEADS))

    def sink(self) -> Tensor:
        return self.logits


def test_tensors_are_not_kept() -> None:
    assert fixed(WithSink(scheme_of("rope"))).terms is None


@pytest.mark.parametrize("name", ["alibi", "logn", "t5", "fox", "deberta", "xpos", "rope+rerope+alibi"])
def test_terms_of_one_call_are_not_kept(name: str) -> None:
    assert fixed(scheme_of(name)).terms is None
