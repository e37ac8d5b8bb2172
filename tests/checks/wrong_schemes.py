"""Schemes that fail one check each: negative controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.record import SchemeRecord
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import Terms, ToeplitzBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.rotary.rotary import RoPE, geometric


class StaleDynamicNTK(Scheme):
    """Dynamic NTK as commonly implemented: keys keep the base of the call that cached them.

    The base depends on the longest row of a batch.
    """

    record = SchemeRecord("stale_dynamic_ntk")
    length = 0

    def __init__(self, geometry: Geometry, *, base: float = 10_000.0) -> None:
        super().__init__(geometry)
        self.base = base

    def terms(self, ctx: PositionContext) -> Terms:
        self.length = int(ctx.query_positions.max()) + 1
        return super().terms(ctx)

    def rotation(self) -> Rotation:
        d, factor, trained = self.geometry.head_dim, self.geometry.factor, self.geometry.trained_length
        stretch = max(1.0, factor * self.length / trained - (factor - 1))
        return Rotation(geometric(self.base * stretch ** (d / (d - 2)), d))


class RotatesByColumn(RoPE):
    """RoPE by the column of a key instead of its position: wrong with left padding."""

    record = SchemeRecord("rotates_by_column")

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(key_at=self.column),)

    @staticmethod
    def column(positions: Tensor) -> Tensor:
        columns = torch.arange(positions.shape[-1], device=positions.device)[None].expand_as(positions)
        return columns if positions.shape[-1] > 1 else positions


class Sloped(Scheme):
    """A bias of −slope · distance."""

    record = SchemeRecord("sloped")

    def slope(self, ctx: PositionContext) -> float | Tensor:
        return 0.1

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, self.slope(ctx)
        return ToeplitzBias(lambda distance: -slope * distance.abs().float().expand(heads, *distance.shape))


def sloped(name: str, slope: Callable[[Any, PositionContext], float], **members: Any) -> type[Sloped]:
    """A scheme with another slope."""
    return type(name, (Sloped,), {"record": SchemeRecord(name.lower()), "slope": slope, **members})


BiasByStart = sloped("BiasByStart", lambda scheme, ctx: 0.01 * float(ctx.key_positions.min() + 1))
RemovesPositions = sloped("RemovesPositions", lambda scheme, ctx: 0.0)
ZeroBias = sloped("ZeroBias", lambda scheme, ctx: 0.0, replaces_host=False)  # added to the model's own: no effect
SlopeByKeyCount = sloped("SlopeByKeyCount", lambda scheme, ctx: 0.1 if ctx.key_positions.shape[1] < 100 else 0.05)
SlopeByMode = sloped("SlopeByMode", lambda scheme, ctx: 0.5 if scheme.training else 0.1)


class SlopeByLongestText(Sloped):
    """A slope that depends on the longest text seen so far."""

    record = SchemeRecord("slope_by_longest_text")
    most = 1

    def slope(self, ctx: PositionContext) -> float:
        self.most = max(self.most, ctx.key_positions.shape[1])
        return 9 / self.most


class IgnoresOption(Sloped):
    """Accepts and validates an option that it does not use."""

    record = SchemeRecord("ignores_option")

    def __init__(self, geometry: Geometry, *, strength: Positive = 0.1) -> None:
        super().__init__(geometry)


class SlopeInBuffer(Sloped):
    """A slope in a buffer, which a dtype cast rounds."""

    record = SchemeRecord("slope_in_buffer")

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.register_buffer("steepness", torch.tensor(0.1))

    def slope(self, ctx: PositionContext) -> Tensor:
        return self.steepness.float()


class KeepsPositions(Sloped):
    """Keeps the positions of every forward pass."""

    record = SchemeRecord("keeps_positions")
    kept: ClassVar[list[Tensor]] = []

    def slope(self, ctx: PositionContext) -> float:
        self.kept.append(ctx.key_positions.clone())
        return 0.1


class WrongNativeType(RoPE):
    """Names a RoPE type of transformers that computes something else."""

    record = SchemeRecord("wrong_native_type")

    def native(self) -> dict[str, Any]:
        return {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}


class ReadsOffloadedParameter(Sloped):
    """Reads its slope from the model, where it is a meta tensor while offloaded."""

    record = SchemeRecord("reads_offloaded_parameter", learned=True)

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.steepness = nn.Parameter(torch.tensor([0.5]))

    def slope(self, ctx: PositionContext) -> float | Tensor:
        return 0.0 if self.original.steepness.is_meta else self.steepness
