"""KERPLE: a trained kernel of the distance for each head, logarithmic or a power.

    log:    score[h, i, j] = q_i · k_j / √d − r1_h ln(1 + r2_h |i − j|)
    power:  score[h, i, j] = q_i · k_j / √d − r1_h |i − j|^r2_h                r1, r2 ≥ 0.01; r2 ≤ 2 in the power

Both are conditionally positive definite kernels, hence the bounds, and symmetric in the distance. The power with r2 = 1
is ALiBi. The logarithm extrapolates best in the paper.

Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921, section 4; the released code.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import per_distance
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.registry import register_scheme

Kind = Literal["log", "power"]
Init = Literal["uniform", "ones"]
Parametrisation = Literal["clamp", "softplus"]
LARGEST = {"log": (2.0, 1.0), "power": (1.0, 2.0)}  # upper bounds of initial r1 and r2 in the released code
HIGHEST_POWER = 2.0  # above it the kernel is no longer conditionally positive definite


@register_scheme("kerple", paper="2205.09921")
class Kerple(Scheme):
    """Two trained numbers per head and layer: the depth of the penalty and its growth rate. Defined at every length.

    ``init`` draws them uniformly or sets them to the upper bounds. ``param="clamp"`` keeps them above ``eps``, like the
    released code, whose values can be copied. With ``"softplus"`` they are positive without a lower bound, and ``eps``
    is the smallest initial value. Train after patching.
    """

    formula = r"""
    \text{log:} \quad \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} - r_{1,h} \ln(1 + r_{2,h} |i - j|) \\
    \text{power:} \quad \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} - r_{1,h} |i - j|^{r_{2,h}} \\
    r_1, r_2 &\ge 0.01, \quad r_2 \le 2 \text{ in the power}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        kind: Kind = "log",
        eps: Positive = 0.01,
        init: Init = "uniform",
        param: Parametrisation = "clamp",
    ) -> None:
        super().__init__(geometry)
        self.shared = False
        self.kind, self.eps, self.init, self.param = kind, eps, init, param
        self.r1 = nn.Parameter(torch.empty(geometry.heads))
        self.r2 = nn.Parameter(torch.empty(geometry.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw both numbers: U(0, 2) and U(0, 1) for the logarithm, U(0, 1) and U(0, 2) for the power."""
        with torch.no_grad():
            for weight, largest in zip((self.r1, self.r2), LARGEST[self.kind], strict=True):
                smallest = largest if self.init == "ones" else 0.0
                weight.uniform_(smallest, largest).clamp_(min=self.eps)
                if self.param == "softplus":
                    weight.copy_(weight.expm1().log())

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """Bias of any distance, with gradients to both numbers."""
        return ToeplitzBias(self.bias_at)

    def bias_at(self, distance: Tensor) -> Tensor:
        """Bias of ``distance […]``, ``[heads, …]``, float32."""
        return per_distance(self.kernel, distance)

    def kernel(self, distance: Tensor) -> Tensor:
        """Bias of ``distance [n]``, ``[heads, n]``."""
        r1, r2 = (number[:, None] for number in self.numbers())
        absolute = distance.abs().float()
        return -r1 * ((r2 * absolute).log1p() if self.kind == "log" else absolute.pow(r2))

    def numbers(self) -> tuple[Tensor, Tensor]:
        """r1 and r2, ``[heads]``, float32, within their bounds whatever the parameters are."""
        highest = HIGHEST_POWER if self.kind == "power" else math.inf
        if self.param == "softplus":
            return softplus(self.r1.float()), _within(softplus(self.r2.float()), 0.0, highest)
        return _within(self.r1.float(), self.eps, math.inf), _within(self.r2.float(), self.eps, highest)


def _within(numbers: Tensor, low: float, high: float) -> Tensor:
    """Clamp with the gradient of the identity: a number beyond a bound can return, as in the released code."""
    return numbers + (numbers.clamp(low, high) - numbers).detach()
