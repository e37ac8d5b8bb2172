"""ReRoPE: beyond a window, every key seems equally far.

    Δ' = Δ for Δ < w,  w beyond         Δ = i − j, w = window < trained length

Two regions: near pairs are rotated as ever; far ones meet a query that stands at w and keys that stand at 0. The cache
keeps each key twice, rotated and raw, so that decoding rotates nothing again. Compose with log-n as ``"rerope+logn"``.

Su 2023, kexue.fm/archives/9708; github.com/bojone/rerope.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.geometry import Geometry
from hf_posenc.options import PositiveInt
from hf_posenc.registry import register_scheme
from hf_posenc.schemes.base import Scheme
from hf_posenc.terms import Band, Region


class Remap(Scheme):
    """Base of the remaps: they keep the host's rotation and change the positions it is given."""

    replaces_host = False
    needs_rotation = True
    needs_causal = True

    def __init__(self, geometry: Geometry, *, window: int | None) -> None:
        super().__init__(geometry)
        trained = geometry.trained_length
        self.window = max(1, trained // 2) if window is None else window
        if self.window >= trained:
            raise OptionOutOfRange(
                f"window must be smaller than the trained length {trained}, got {self.window}. "
                "The default is half of it."
            )

    @property
    def near(self) -> Band:
        """Distances that stay as they are."""
        return Band(None, self.window)

    @property
    def far(self) -> Band:
        """Distances that are remapped."""
        return Band(self.window, None)

    @property
    def unchanged_below(self) -> int:
        return self.window


@register_scheme(
    "rerope", models=("llama",), undefined="it remaps the host's rotation, and this model has none", zero_shot=True,
    cache="copies", paper="https://kexue.fm/archives/9708",
)  # fmt: skip
class ReRoPE(Remap):
    """Distances clipped to a window, by default half the trained length. Zero-shot on RoPE models, any length."""

    def __init__(self, geometry: Geometry, *, window: PositiveInt | None = None) -> None:
        super().__init__(geometry, window=window)

    def regions(self, positions: Tensor) -> tuple[Region, ...]:
        here = torch.zeros_like(positions)
        return Region(positions, positions, self.near), Region(here + self.window, here, self.far)
