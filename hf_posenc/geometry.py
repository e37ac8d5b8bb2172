"""What a scheme may know of a model: shapes, lengths and the host's own rotation. No module, no tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of channels by position.

    Attributes:
        frequencies: radians per token of each rotated pair, fastest first. Python floats: they are hashable, survive
            every cast of the model, and no buffer can go stale.
        layout: ``half`` pairs channel m with m + n (Llama, NeoX), ``interleaved`` 2m with 2m + 1 (GPT-J, the papers).
    """

    frequencies: tuple[float, ...]
    layout: Layout = "half"

    @property
    def dims(self) -> int:
        """Channels that take part; those behind them are left alone."""
        return 2 * len(self.frequencies)


def geometric(base: float, dims: int) -> tuple[float, ...]:
    """RoPE's own frequencies: ω_m = base^(−2m / dims), m = 0 … dims/2 − 1."""
    return tuple(base ** (-2 * m / dims) for m in range(dims // 2))


@dataclass(frozen=True)
class HostRotary:
    """The rotation a host brings along.

    Attributes:
        rotation: with the scaling of its configuration, if it has one.
        base: RoPE's θ.
        logit_scale: what its scaling multiplies every logit with.
    """

    rotation: Rotation
    base: float
    logit_scale: float = 1.0


@dataclass(frozen=True)
class Geometry:
    """Adapter → scheme: the shapes of a host and the lengths of a patch."""

    heads: int
    kv_heads: int
    head_dim: int
    width: int
    layers: int
    causal: bool
    trained_length: int
    target_length: int
    rotary: HostRotary | None = None
    table: int | None = None  # rows of the host's learned position table, if it has one

    @property
    def factor(self) -> float:
        """Target length over trained length, at least 1."""
        return self.target_length / self.trained_length
