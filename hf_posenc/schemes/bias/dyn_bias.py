"""Dynamic position bias: a small network maps the distance to a bias for each head.

    score[h, i, j] = q_i · k_j / √d + MLP(x)_h          x = i − j,  or sign(i − j) ln(1 + |i − j|) with log=True

The network has ``depth`` hidden layers of ``width`` channels, with SiLU in between. The distance keeps its sign, so
left and right differ. The network is evaluated once for each distance, not for each pair.

Wang et al. 2021, "CrossFormer", arXiv:2108.00154, section 3.2; on the logarithm Liu et al. 2021, "Swin Transformer V2",
arXiv:2111.09883, section 3.3; SiLU and depth as in x-transformers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from annotated_types import Gt, Le
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import exact, per_distance
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.weights import LinearWeights

Depth = Annotated[int, Gt(0), Le(64)]


@register_scheme("dyn_bias", aliases=("cpb", "dpb"), paper="2108.00154")
class DynamicBias(Scheme):
    """A trained network from the distance to each head's bias, one per layer. Train after patching.

    Defined at every length, but networks of the plain distance extrapolate poorly beyond the distances of training;
    ``log=True`` compresses the range of their input.
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} + \mathrm{MLP}(x)_h \\
    x &= i - j \quad \text{or} \quad \mathrm{sign}(i - j) \ln(1 + |i - j|) \text{ with } \mathtt{log=True}
    """

    def __init__(self, geometry: Geometry, *, width: PositiveInt = 128, depth: Depth = 2, log: bool = False) -> None:
        super().__init__(geometry)
        self.shared = False
        self.log = log
        widths = [1, *[width] * depth, geometry.heads]
        self.layers = nn.ModuleList(LinearWeights(*ends) for ends in pairwise(widths))

    def reset_parameters(self) -> None:
        """Redraw the network with the defaults of linear layers."""
        for layer in self._linears():
            layer.reset_parameters()

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """Bias of any distance, with gradients to the network."""
        return ToeplitzBias(self.bias_at)

    def bias_at(self, distance: Tensor) -> Tensor:
        """Bias of ``distance […]``, ``[heads, …]``, float32."""
        return per_distance(self.network, distance)

    def network(self, distance: Tensor) -> Tensor:
        """Network output at ``distance [n]``, ``[heads, n]``, float32; float64 inside, because large terms cancel."""
        x = exact(distance)[:, None]
        if self.log:
            x = x.sign() * x.abs().log1p()
        for number, layer in enumerate(self._linears()):
            x = linear(silu(x) if number else x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
        return x.T.float()

    def _linears(self) -> list[LinearWeights]:
        return list(self.layers)  # type: ignore[arg-type]  # a list of modules is not typed
