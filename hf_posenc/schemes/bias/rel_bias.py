"""Relative bias: one trained number for each head and each clipped distance.

    score[h, i, j] = q_i · k_j / √d + T[clip(j − i, −K, K) + K, h]          T: 2K + 1 rows × heads

The simplest trainable relative position. It distinguishes left from right; all keys beyond K on one side are alike.

Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155 (clipping); as a scalar per head: Liu et al. 2021, "Swin Transformer",
arXiv:2103.14030, section 3.2.
"""

from __future__ import annotations

from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import clipped
from hf_posenc.schemes.options import Positive, PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme("rel_bias", aliases=("relative_table",), paper="2103.14030")
class RelativeBias(Scheme):
    """A trained table of clipped distances × heads, by default one per layer. Defined at every length.

    ``max_distance`` is K; ``std`` the standard deviation of the initial table. Train after patching.
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} + T[\mathrm{clip}(j - i, -K, K) + K, \, h] \\
    T &: 2K + 1 \text{ rows} \times \text{heads}
    """

    whole_positions = True
    sharing_option = "share_layers"

    def __init__(
        self,
        geometry: Geometry,
        *,
        max_distance: PositiveInt = 128,
        std: Positive = 0.02,
        share_layers: bool = False,
    ) -> None:
        super().__init__(geometry)
        self.shared = share_layers
        self.max_distance, self.std = max_distance, std
        self.table = nn.Embedding(2 * max_distance + 1, geometry.heads)

    def reset_parameters(self) -> None:
        """Redraw the table, N(0, ``std``²)."""
        nn.init.normal_(self.table.weight, std=self.std)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """Bias of any whole distance, with a gradient to the table."""
        return ToeplitzBias(self.bias_at)

    def bias_at(self, distance: Tensor) -> Tensor:
        """Bias of ``distance […]``, ``[heads, …]``, float32."""
        return self.table(clipped(distance, self.max_distance)).movedim(-1, 0).float()
