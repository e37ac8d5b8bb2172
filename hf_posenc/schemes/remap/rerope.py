"""ReRoPE: clip distances at a window; leaky ReRoPE lets them grow slowly beyond it.

    Δ' = Δ for Δ < w,  w beyond                  Δ = i − j, w = window < trained length
    Δ' = Δ for Δ < w,  w + (Δ − w) / k beyond    leaky
    an encoder has both signs: Δ' = sign(Δ) g(|Δ|), without published results

There are two regions. Near pairs are rotated by their positions; far pairs have the query at w and the key at 0. The
cache stores each key twice, rotated and unrotated, so decoding rotates no key again. With ``key_cache="one"`` it stores
only the unrotated key, and each new token rotates the keys of its window. Compose it with log-n as ``"rerope+logn"``.

Su 2023, kexue.fm/archives/9708; github.com/bojone/rerope.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Band, Region, at_zero
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import AtLeastOne, PositiveInt
from hf_posenc.schemes.registry import register_scheme

KeyCache = Literal["copies", "one"]


class RotatesKeysByRegion(Scheme):
    """Base of schemes whose regions rotate keys differently; ``key_cache`` says how many copies a KV cache holds.

        R(p') k = R(p' − p) R(p) k        p, p': positions of a key in two regions

    Rotations compose, so one copy gives the others. With one copy of each key, a cache is as large as that of the
    unpatched model; with two it takes 1.5 times the memory. In exchange, each decoded token rotates the keys that it
    reads in the smaller region, usually a window.
    """

    def __init__(self, geometry: Geometry, *, key_cache: KeyCache) -> None:
        super().__init__(geometry)
        self.key_cache = key_cache
        if self.caches_one_key and not geometry.causal and not self.needs_causal:
            raise OptionOutOfRange(
                f"Option 'key_cache' of scheme {self.record.name!r}: an encoder has no KV cache, got {key_cache!r}. "
                "Leave the option out."
            )

    @property
    def caches_one_key(self) -> bool:
        return self.key_cache == "one"


class Remap(RotatesKeysByRegion):
    """Base of schemes that keep the model's rotation and change its positions."""

    replaces_host = False
    needs_rotation = True

    def __init__(self, geometry: Geometry, *, window: int | None, key_cache: KeyCache) -> None:
        super().__init__(geometry, key_cache=key_cache)
        trained = geometry.trained_length
        self.window = max(1, trained // 2) if window is None else window
        if self.window >= trained:
            raise OptionOutOfRange(
                f"window must be smaller than the trained length {trained}, got {self.window}. "
                "The default is half of it."
            )

    @property
    def near(self) -> Band:
        """Distances that stay unchanged."""
        return Band(None if self.geometry.causal else 1 - self.window, self.window)

    @property
    def far(self) -> Band:
        """Distances to earlier keys that are remapped."""
        return Band(self.window, None)

    @property
    def ahead(self) -> Band:
        """Distances to later keys that are remapped, in an encoder."""
        return Band(None, 1 - self.window)

    @property
    def unchanged_below(self) -> int:
        """The window in a decoder, because no key is far within that length."""
        return self.window if self.geometry.causal else 0


@register_scheme("rerope", zero_shot=True, cache="copies", paper="https://kexue.fm/archives/9708")
class ReRoPE(Remap):
    """Distances clipped to a window, by default half the trained length. Zero-shot on RoPE models, any length.

    ``key_cache="one"`` caches one copy of each key, and rotates those of the window for each new token.
    """

    formula = r"""
    \Delta' &= \begin{cases}
    \Delta & \Delta < w \\
    w & \Delta \ge w
    \end{cases} \\
    \Delta &= i - j, \quad w = \mathtt{window} < \text{trained length} \\
    \Delta' &= \mathrm{sign}(\Delta) \, g(|\Delta|) \quad \text{in an encoder, without published results}
    """

    def __init__(
        self, geometry: Geometry, *, window: PositiveInt | None = None, key_cache: KeyCache = "copies"
    ) -> None:
        super().__init__(geometry, window=window, key_cache=key_cache)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        back = Region(self.near), Region(self.far, self.at_edge, at_zero)
        return back if ctx.causal else (*back, Region(self.ahead, self.at_other_edge, at_zero))

    def at_edge(self, positions: Tensor) -> Tensor:
        """Position of every query for far keys: the edge of the window."""
        return torch.full_like(positions, self.window)

    def at_other_edge(self, positions: Tensor) -> Tensor:
        """Position of every query for far later keys, in an encoder."""
        return torch.full_like(positions, -self.window)


@register_scheme("leaky_rerope", zero_shot=True, cache="copies", paper="https://kexue.fm/archives/9708")
class LeakyReRoPE(Remap):
    """Distances beyond a window grow by 1/k a token: ``Δ' = w + (Δ − w) / k``. Zero-shot on RoPE models.

    ``k = 1`` is RoPE, k → ∞ is ReRoPE. ``key_cache="one"`` caches one copy of each key, and rotates those of the
    window for each new token.
    """

    formula = r"""
    \Delta' &= \begin{cases}
    \Delta & \Delta < w \\
    w + (\Delta - w) / k & \Delta \ge w
    \end{cases} \\
    \Delta &= i - j, \quad w = \mathtt{window} < \text{trained length} \\
    \Delta' &= \mathrm{sign}(\Delta) \, g(|\Delta|) \quad \text{in an encoder, without published results}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        window: PositiveInt | None = None,
        k: AtLeastOne = 16.0,
        key_cache: KeyCache = "copies",
    ) -> None:
        super().__init__(geometry, window=window, key_cache=key_cache)
        self.k = k

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        back = Region(self.near), Region(self.far, self.slowed_query, self.slowed)
        return back if ctx.causal else (*back, Region(self.ahead, self.slowed_query_ahead, self.slowed))

    def slowed(self, positions: Tensor) -> Tensor:
        """Position of a far key, float64: float32 has too few digits for fractions at 10⁶."""
        return positions.to(torch.float64) / self.k

    def slowed_query(self, positions: Tensor) -> Tensor:
        """Position of the query of a far key, shifted so that distances are continuous at the edge of the window."""
        return self.slowed(positions) + self.window * (1 - 1 / self.k)

    def slowed_query_ahead(self, positions: Tensor) -> Tensor:
        """Position of the query of a far later key, in an encoder."""
        return self.slowed(positions) - self.window * (1 - 1 / self.k)
