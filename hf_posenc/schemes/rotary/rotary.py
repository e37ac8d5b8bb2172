"""RoPE: rotate pairs of query and key channels by position; their product then depends on the distance alone.

    q'_i = R(i) q_i,  k'_j = R(j) k_j,   R(p) rotates pair m by p ω_m,   ω_m = θ^(−2m / d),  d = rotary_dim
    q'_i · k'_j = Σ_m Re[q_m k*_m e^(i ω_m (i − j))]

A model that has RoPE is unchanged; on GPT-2 and BERT it replaces the learned table. Checkpoints come in two layouts,
``half`` (Llama, NeoX) and ``interleaved`` (GPT-J, RoFormer); pairs are rotated in their own layout.

Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer", arXiv:2104.09864, section 3.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posenc.core.constants import exact_dtype
from hf_posenc.core.geometry import Geometry, Layout, Rotation, geometric
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Base, PositiveInt
from hf_posenc.schemes.registry import register_scheme


class Rotary(Scheme):
    """Base of schemes that rotate by fixed frequencies; subclasses override `frequencies`.

    Args:
        geometry: geometry of the model.
        base: θ; by default the model's own, or 10 000.
        layout: layout of the pairs; by default the model's own, or ``half``.
        dims: number of rotated channels, the first ones of each head; by default those that the model rotates, or all.

    In ``"host+NAME"`` (``geometry.on_host``), schemes with ``stretches`` start from the frequencies, layout and
    amplitude of the model's own rotation, which may be scaled already.

    Class attributes:
        attention_factor: factor of cosines and sines, under transformers' name. If whole heads are rotated, logits are
            multiplied by its square instead, which is equal; otherwise it is the amplitude of the rotation.
    """

    attention_factor: float = 1.0

    def __init__(
        self, geometry: Geometry, *, base: float | None = None, layout: Layout | None = None, dims: int | None = None
    ) -> None:
        super().__init__(geometry)
        rotary = geometry.rotary
        if geometry.on_host and base is not None:
            raise OptionOutOfRange(
                f"base is {base:g}, but this scheme stretches the frequencies that the model has. Leave base out, or "
                "leave host out of the composition."
            )
        own = rotary.base if rotary else 10_000.0
        self.base = own if base is None else base
        self.layout: Layout = layout or (rotary.rotation.layout if rotary else "half")
        self.dims = geometry.rotary_dim if dims is None else dims

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each rotated pair, fastest first."""
        own = self.geometry.rotary if self.geometry.on_host else None
        return geometric(self.base, self.dims) if own is None else tuple(own.rotation.frequencies)

    def rotation(self) -> Rotation:
        return self.memoized("its rotation", lambda: self.rotation_by(self.frequencies()))

    def rotation_by(self, frequencies: tuple[float, ...]) -> Rotation:
        """The rotation by given frequencies, with the scheme's layout and amplitude."""
        own = self.geometry.rotary if self.geometry.on_host else None
        own_amplitude = 1.0 if own is None else own.rotation.amplitude
        amplitude = own_amplitude if self.scales_logits else own_amplitude * self.attention_factor
        return Rotation(frequencies, self.layout, amplitude=amplitude)

    @property
    def rotates_all(self) -> bool:
        """Whether all channels of a head are rotated."""
        return self.dims == self.geometry.head_dim

    @property
    def scales_logits(self) -> bool:
        """Whether the square of ``attention_factor`` scales whole logits; else it scales the rotated channels."""
        return self.rotates_all

    def pair_with_rotations(self, rotations: float) -> float:
        """Fractional index of the pair that makes so many rotations within the trained length."""
        d, trained = self.dims, self.geometry.trained_length
        if self.geometry.on_host:
            return pair_with_frequency(Rotary.frequencies(self), 2 * math.pi * rotations / trained)
        return d * math.log(trained / (2 * math.pi * rotations)) / (2 * math.log(self.base))

    def scaled_as(self, kind: str, **numbers: Any) -> dict[str, Any]:
        """``rope_parameters`` of a transformers type, without the share of rotated channels, which the model stores."""
        return {"rope_type": kind, "rope_theta": self.base, **numbers}


class Stretched(Rotary):
    """Base of schemes that stretch the rotation to a longer context by other frequencies."""

    stretches: ClassVar[bool] = True

    def __init__(self, geometry: Geometry, *, base: Base | None = None) -> None:
        super().__init__(geometry, base=base)

    def rotations_of(self, frequency: float) -> float:
        """Number of rotations of a pair within the trained length."""
        return self.geometry.trained_length * frequency / (2 * math.pi)


def own_within_trained(geometry: Geometry, rotation: Rotation, logit_scale: float) -> int:
    """The trained length if a decoder keeps its rotation and logit scale within it; else 0."""
    rotary = geometry.rotary
    if not geometry.causal or rotary is None:
        return 0
    own_scale = 1.0 if geometry.on_host else rotary.logit_scale
    return geometry.trained_length if rotary.rotation == rotation and own_scale == logit_scale else 0


def pair_with_frequency(frequencies: tuple[float, ...], frequency: float) -> float:
    """Fractional index of the pair that rotates by ``frequency`` radians per token.

    The logarithm of the frequency is taken as linear in the index, between two pairs and beyond both ends. For RoPE's
    own frequencies this is exact. Pairs with frequency 0 are left out.

    Args:
        frequencies: radians per token, fastest first; they need not be geometric.
        frequency: radians per token, greater than 0.
    """
    logs = [math.log(w) for w in frequencies if w > 0]
    if len(logs) < 2:
        return 0.0 if logs and frequency < math.exp(logs[0]) else -1.0
    slower = next((m for m, log in enumerate(logs) if log <= math.log(frequency)), len(logs) - 1)
    end = min(max(slower, 1), len(logs) - 1)
    return end - 1 + (logs[end - 1] - math.log(frequency)) / ((logs[end - 1] - logs[end]) or math.inf)


@register_scheme("rope", aliases=("rotary", "roformer"), paper="2104.09864", zero_shot=True)
class RoPE(Rotary):
    """Rotation by the unscaled frequencies; relative; poor beyond the trained length.

    ``on_v`` rotates the values too, as RoFormer's ``rotary_value``; outputs then depend on absolute positions. With
    ``learn_freq`` the frequencies are ω_m e^(δ_m), δ learned and zero at the start, shared by all layers.
    """

    formula = r"""
    q'_i &= R(i) \, q_i, \quad k'_j = R(j) \, k_j, \quad R(p) \text{ rotates pair $m$ by } p \, \omega_m \\
    \omega_m &= \theta^{-2m/d}, \quad d = \mathtt{rotary\_dim} \\
    q'_i \cdot k'_j &= \sum_m \mathrm{Re} \left[ q_m k^*_m e^{\mathrm{i} \omega_m (i - j)} \right]
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        base: Base | None = None,
        layout: Layout | None = None,
        rotary_dim: PositiveInt | None = None,
        on_v: bool = False,
        learn_freq: bool = False,
    ) -> None:
        if rotary_dim is not None and (rotary_dim % 2 or rotary_dim > geometry.head_dim):
            raise OptionOutOfRange(
                f"rotary_dim must be an even number of at most {geometry.head_dim}, the channels of a head, "
                f"got {rotary_dim}. Leave it out to rotate those that the model rotates."
            )
        super().__init__(geometry, base=base, layout=layout, dims=rotary_dim)
        self.on_v = on_v
        self.correction = nn.Parameter(torch.zeros(self.dims // 2)) if learn_freq else None

    def reset_parameters(self) -> None:
        """Reset to the frequencies of the formula."""
        if self.correction is not None:
            nn.init.zeros_(self.correction)

    def native(self) -> dict[str, Any] | None:
        """transformers' default type, unless frequencies are learned; the other options show in the rotation."""
        return self.scaled_as("default") if self.correction is None else None

    def rotation(self) -> Rotation:
        if self.correction is not None:
            return Rotation(self.corrected(self.correction), self.layout, values=self.on_v)
        return self.memoized("its rotation", lambda: Rotation(self.frequencies(), self.layout, values=self.on_v))

    def corrected(self, correction: Tensor) -> Tensor:
        """ω_m e^(δ_m) for ``correction [pairs]`` in any dtype, in float64 where the device has it.

        The parameter is δ, not ω: bfloat16 would round a frequency by half a percent, which is radians at position 10³.
        A δ near zero hardly changes.
        """
        exact = exact_dtype(correction.device)
        frequencies = torch.tensor(self.frequencies(), dtype=exact, device=correction.device)
        return frequencies * correction.to(exact).exp()
