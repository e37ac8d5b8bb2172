"""Dynamic YaRN: YaRN whose factor follows the sequence length; sequences within the trained length are unchanged.

    s(L)    = max(1, L / L0)                                L: the length at each query,  L0 = trained length
    ω'_m(L) = (1 − γ_m) ω_m + γ_m ω_m / s(L)                γ as in `yarn`: by rotations within L0, at every length
    score'  = (0.1 ln s(L) + 1)² score

As in `dynamic_ntk`, token i and all its keys are rotated for the length i + 1, whatever follows. Keys are cached
unrotated, and rotated for each query, so cached decoding equals a single forward pass. In an encoder, the length of the
sequence counts for all its queries. The authors' code has one length for a whole call.

Peng, Quesnelle, Fan, Shippole 2023, arXiv:2309.00071, section 3.4, "Dynamic Scaling".
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.constants import exact_dtype
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.tracing import is_traced
from hf_posenc.schemes.options import Base, Positive, PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.dynamic_ntk import RotationByLength
from hf_posenc.schemes.rotary.yarn import NTKByParts, Ramp


@register_scheme("dynamic_yarn", paper="2309.00071", zero_shot=True, cache="raw")
class DynamicYarn(RotationByLength):
    """YaRN for the sequence length so far, temperature included. Exact up to the trained length; options as in `yarn`.

    ``granularity`` rounds lengths beyond the trained length up, to steps of that many tokens. Blocks of queries then
    share a rotation, which is cheaper and still the same with and without cache. Decoding rotates only the new key,
    except at the first token of a step. The temperature scales whole logits, also where a part of each head is rotated.
    """

    formula = r"""
    s(L) &= \max(1, \, L / L_0) \quad \text{$L$: the length at each query, $L_0$: trained length} \\
    \omega'_m(L) &= (1 - \gamma_m) \, \omega_m + \gamma_m \, \frac{\omega_m}{s(L)} \quad \text{$\gamma$ as in YaRN} \\
    \mathrm{score}' &= (0.1 \ln s(L) + 1)^2 \, \mathrm{score}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        ramp: Ramp = "dim",
        truncate: bool = True,
        granularity: PositiveInt = 1,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, granularity=granularity, base=base)
        parts = NTKByParts(
            geometry, beta_fast=beta_fast, beta_slow=beta_slow, ramp=ramp, truncate=truncate, base=base
        )  # fmt: skip
        self.slowed = tuple(parts.slowed())

    def rotation_of(self, length: int) -> Rotation:
        """The rotation of queries at a length."""
        s = length / self.geometry.trained_length
        slower = ((1 - g) * w + g * w / s for w, g in zip(self.frequencies, self.slowed, strict=True))
        return Rotation(tuple(slower), self.unscaled.layout)

    def frequencies_of(self, lengths: Tensor) -> Tensor:
        """Radians per token of each pair at ``lengths […]``, ``[…, pairs]``, float64."""
        exact, device = exact_dtype(lengths.device), lengths.device
        unscaled, slowed = (torch.tensor(x, dtype=exact, device=device) for x in (self.frequencies, self.slowed))
        s = lengths.to(exact)[..., None] / self.geometry.trained_length
        return (1 - slowed) * unscaled + slowed * unscaled / s

    def row_scale(self, ctx: PositionContext) -> Tensor | None:
        """(0.1 ln s + 1)² of each query, ``[batch or 1, 1, query]``, float32; None if all are known to be 1."""
        trained = self.geometry.trained_length
        first = ctx.first if ctx.causal and not is_traced() else None
        if first is not None and first + ctx.query_positions.shape[1] <= trained:
            return None
        key = ("dynamic_yarn", trained, self.granularity)
        return ctx.once(key, lambda: self._temperature(self.length_of(ctx.query_positions))[:, None])

    def _temperature(self, lengths: Tensor) -> Tensor:
        return (0.1 * (lengths.float() / self.geometry.trained_length).log() + 1) ** 2
