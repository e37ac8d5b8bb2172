"""What a scheme may know of a model: shapes, lengths and the host's own rotation. No module, no tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of channels by position.

    Attributes:
        frequencies: radians per token of each rotated pair, fastest first. Python floats: they are hashable, survive
            every cast of the model, and no buffer can go stale. A tensor where they are learned.
        layout: ``half`` pairs channel m with m + n (Llama, NeoX), ``interleaved`` 2m with 2m + 1 (GPT-J, the papers).
        axes: which coordinate of a token turns each pair; None where there is one, its position.
        decay: a_m per token: queries are scaled by e^(−a_m age), keys by e^(a_m age); empty for none.
        values: whether values are rotated as keys are.
    """

    frequencies: tuple[float, ...] | Tensor
    layout: Layout = "half"
    axes: tuple[int, ...] | None = None
    decay: tuple[float, ...] = ()
    values: bool = False

    @property
    def learned(self) -> bool:
        """Whether the frequencies are parameters."""
        return not isinstance(self.frequencies, tuple)

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
