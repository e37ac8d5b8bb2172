"""Sinusoidal positions: a sine and a cosine per frequency, added to the token embedding.

    x_p[2m] ← x_p[2m] + c sin(p ω_m),  x_p[2m+1] ← x_p[2m+1] + c cos(p ω_m)          ω_m = base^(−2m / D), c = scale

A shift by k rotates every pair of channels by an angle that does not depend on p, so relative position is a linear map
of the code. The sine alone has no such map: its norm and its inner products depend on the position.

Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.5. Nothing is learned, unless c is; for
models trained with it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.rotation import cos_sin
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Base, Positive
from hf_posenc.schemes.registry import register_scheme

Schedule = Literal["geometric", "linear", "custom"]
Kind = Literal["sincos", "sin", "cos"]
CodeLayout = Literal["interleaved", "concat"]


@register_scheme("sinusoidal", aliases=("sincos", "vaswani"), paper="1706.03762")
class Sinusoidal(Scheme):
    """Fixed codes, defined at every position; models trained with them still fail soon past their trained length.

    ``schedule="linear"`` spaces the frequencies evenly from 1 to 1 / base; ``"custom"`` takes ``frequencies``, one per
    two channels. ``kind="sin"`` or ``"cos"`` sets the other half of the channels to 0. ``layout="concat"`` puts all
    sines before all cosines; ``reverse`` puts the last frequency first; ``scale="learned"`` starts from 1 / √width. An
    odd width has one more sine than cosines.
    """

    formula = r"""
    x_p[2m] &\leftarrow x_p[2m] + c \sin(p \, \omega_m) \\
    x_p[2m + 1] &\leftarrow x_p[2m + 1] + c \cos(p \, \omega_m) \\
    \omega_m &= \mathrm{base}^{-2m/D}, \quad c = \mathtt{scale}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        base: Base = 10_000.0,
        schedule: Schedule = "geometric",
        frequencies: list[Positive] | None = None,
        kind: Kind = "sincos",
        layout: CodeLayout = "interleaved",
        scale: Positive | Literal["learned"] = 1.0,
        reverse: bool = False,
    ) -> None:
        super().__init__(geometry)
        if (schedule == "custom") != (frequencies is not None):
            raise OptionOutOfRange(
                f'frequencies and schedule="custom" need each other, got {frequencies!r} with {schedule!r}. Give both.'
            )
        chosen = SCHEDULES[schedule](base, geometry.code_width) if frequencies is None else tuple(frequencies)
        if len(chosen) != (geometry.code_width + 1) // 2:
            raise OptionOutOfRange(
                f"frequencies must have one value for each two of {geometry.code_width} channels, got {len(chosen)}. "
                f"Give {(geometry.code_width + 1) // 2}."
            )
        self.frequencies = chosen[::-1] if reverse else chosen
        self.kind, self.layout = kind, layout
        self.scale = nn.Parameter(torch.empty(1)) if scale == "learned" else scale

    def reset_parameters(self) -> None:
        """Reset a learned scale to 1 / √width, at which the code has about the norm of a token embedding."""
        if isinstance(self.scale, nn.Parameter):
            nn.init.constant_(self.scale, self.geometry.code_width**-0.5)

    def embed(self, positions: Tensor) -> Tensor:
        """Codes of ``positions [batch or 1, query]``, ``[batch or 1, query, width]``, float32, from float64 angles."""
        cos, sin = cos_sin(Rotation(self.frequencies), positions)
        cos = cos[..., : self.geometry.code_width // 2]
        sin, cos = sin * float(self.kind != "cos"), cos * float(self.kind != "sin")
        scale = self.scale.float() if isinstance(self.scale, Tensor) else self.scale
        if self.layout == "concat":
            return scale * torch.cat((sin, cos), dim=-1)
        code = sin.new_empty(*positions.shape, self.geometry.code_width)
        code[..., 0::2], code[..., 1::2] = sin, cos
        return scale * code


def geometric_schedule(base: float, width: int) -> tuple[float, ...]:
    """ω_m = base^(−2m / width)."""
    return tuple(base ** (-2 * m / width) for m in range((width + 1) // 2))


def linear_schedule(base: float, width: int) -> tuple[float, ...]:
    """Frequencies from 1 down to 1 / base in equal steps."""
    count = (width + 1) // 2
    step = (1 - 1 / base) / max(count - 1, 1)
    return tuple(1 - m * step for m in range(count))


SCHEDULES = {"geometric": geometric_schedule, "linear": linear_schedule}
