"""PoPE: magnitudes say what, phases say where. In RoPE content shifts a phase, too; here position alone does.

    score[i, j] = Σ_c μ(q_ic) μ(k_jc) cos((j − i) ω_c + δ_c) / √d         c = 0 … d − 1
    μ(x) = ln(1 + e^x),   ω_c = θ^(−c / d)

RoPE rotates d / 2 pairs. Here each of d channels is a magnitude with its own frequency, and becomes a pair: μ cos φ and
μ sin φ. So queries and keys are twice as wide, and a KV cache takes 1.5 times the memory. Values are unchanged.

Learned: δ, a phase for each channel of each key head and layer, kept within [−2π, 0]. The authors find that an initial
value of 0 helps with longer texts, and that a uniform one does slightly better at the trained length. d is the number
of channels that the model rotates, or all if it rotates none. The other channels are multiplied unchanged, as in
lucidrains' PoPE-pytorch. The scale 1 / √d is the layer's own. The authors train from scratch; nothing is published on
models that were trained with another scheme. Biases that multiply queries or keys by tables (Shaw, CoPE, DeBERTa …) do
not fit the width.

Gopalakrishnan, Csordás, Schmidhuber, Mozer 2025, "Decoupling the 'What' and 'Where' With Polar Coordinate Positional
Embeddings", arXiv:2509.10534, section 3.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.options import Base
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary

TURN = 2 * math.pi


@register_scheme("pope", aliases=("polar",), paper="2509.10534")
class PoPE(Rotary):
    """Channels as magnitudes, each rotated by its own frequency; cached keys are twice as wide; experimental.

    ``bias_init`` sets the initial phases of keys: ``"zero"``, or ``"uniform"`` in [−2π, 0].
    """

    formula = r"""
    \mathrm{score}_{ij} &= \frac{1}{\sqrt d} \sum_{c=0}^{d-1} \mu(q_{ic}) \, \mu(k_{jc})
      \cos \left( (j - i) \, \omega_c + \delta_c \right) \\
    \mu(x) &= \ln (1 + e^x), \quad \omega_c = \theta^{-c/d}, \quad -2\pi \le \delta_c \le 0
    """

    shared = False

    def __init__(
        self, geometry: Geometry, *, base: Base | None = None, bias_init: Literal["zero", "uniform"] = "zero"
    ) -> None:
        super().__init__(geometry, base=base, layout="half", dims=2 * geometry.rotary_dim)
        self.bias_init = bias_init
        self.delta = nn.Parameter(torch.zeros(geometry.kv_heads, geometry.rotary_dim))

    def reset_parameters(self) -> None:
        """Redraw δ, or reset it to 0."""
        nn.init.uniform_(self.delta, -TURN if self.bias_init == "uniform" else 0.0, 0.0)

    @property
    def key_width(self) -> int:
        return self.geometry.head_dim + self.geometry.rotary_dim

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Magnitudes with the phases of position 0. `rotation` then rotates channel c together with channel c + d."""
        delta = self.delta.float().clamp(-TURN, 0)[:, None]
        return polar(query, torch.zeros_like(delta[:1])), polar(key, delta)


def polar(x: Tensor, phase: Tensor) -> Tensor:
    """``x [batch, heads, position, head_dim]`` as μ cos φ, μ sin φ and the rest, ``phase [heads or 1, 1, d]``."""
    channels = phase.shape[-1]
    size = softplus(x[..., :channels].float())
    return torch.cat((size * phase.cos(), size * phase.sin(), x[..., channels:].float()), dim=-1).to(x.dtype)
