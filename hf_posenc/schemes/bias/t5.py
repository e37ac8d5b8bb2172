"""T5's bias: one learned number per head and bucket of distances; buckets are narrow near and wide far away.

    score[h, i, j] = q_i · k_j / √d + T[bucket(i − j), h]

    bucket(n) = n                                                       for n < E = N / 2
                E + ⌊(N − E) ln(n / E) / ln(M / E)⌋, at most N − 1      beyond, M = max_distance

A decoder puts future keys in bucket 0. An encoder has N / 2 buckets per direction; those of later keys come last.

Raffel et al. 2019, "Exploring the Limits of Transfer Learning", arXiv:1910.10683, section 2.1; the released code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme("t5", aliases=("t5_bias", "buckets"), paper="1910.10683")
class T5Bias(Scheme):
    """A table of ``num_buckets`` × heads, shared by layers. Defined at every length: far keys share one.

    A decoder needs an even number of buckets, an encoder a multiple of 4. With two buckets, a decoder distinguishes
    only the token itself from all earlier ones. By default, each layer has its own table where schemes differ by layer.
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} + T[\mathrm{bucket}(i - j), \, h] \\
    \mathrm{bucket}(n) &= \begin{cases}
    n & n < E = N / 2 \\
    \min \left( E + \left\lfloor (N - E) \dfrac{\ln(n / E)}{\ln(M / E)} \right\rfloor, \, N - 1 \right) & \text{beyond}
    \end{cases} \\
    M &= \mathtt{max\_distance}
    """

    sharing_option = "share_layers"

    def __init__(
        self,
        geometry: Geometry,
        *,
        num_buckets: PositiveInt = 32,
        max_distance: PositiveInt = 128,
        share_layers: bool | None = None,
    ) -> None:
        super().__init__(geometry)
        sides = 1 if geometry.causal else 2
        exact = num_buckets // (2 * sides)
        if num_buckets % (2 * sides):
            raise OptionOutOfRange(
                f"num_buckets must be a multiple of {2 * sides} for this model, got {num_buckets}. T5 has 32."
            )
        if max_distance <= exact:
            raise OptionOutOfRange(
                f"max_distance must be greater than {exact}, where the buckets begin to widen, got {max_distance}. "
                "T5 has 128."
            )
        self.shared = share_layers is not False
        self.buckets_per_side = num_buckets // sides
        self.thresholds = thresholds(self.buckets_per_side, max_distance)
        self.table = nn.Embedding(num_buckets, geometry.heads)

    def reset_parameters(self) -> None:
        """Redraw the table, N(0, 1 / width), as T5 does."""
        nn.init.normal_(self.table.weight, std=self.geometry.width**-0.5)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """Bias of any distance, with a gradient to the table."""
        return ToeplitzBias(self.bias_at)

    def bias_at(self, distance: Tensor) -> Tensor:
        """Bias of ``distance […]``, ``[heads, …]``, float32."""
        return self.table(self.bucket(distance)).movedim(-1, 0).float()

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of each distance (query − key), int64, same shape."""
        far = distance.clamp(min=0) if self.geometry.causal else distance.abs()
        starts = constant(self.thresholds, distance.dtype, distance.device)
        later = 0 if self.geometry.causal else (distance < 0) * self.buckets_per_side
        return torch.bucketize(far, starts, right=True) + later


def thresholds(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each bucket after the first.

    Bucket E + j starts at the smallest n with (n / E)^K ≥ (M / E)^j, K = buckets − E. This is computed in integers,
    because a rounded logarithm may be wrong at an exact power.
    """
    exact = buckets // 2
    wide = buckets - exact
    starts = list(range(1, exact + 1))
    for j in range(1, wide):
        n = max(starts[-1], int(exact * (max_distance / exact) ** (j / wide)) - 1)  # at most a little too small
        while n**wide * exact**j < max_distance**j * exact**wide:
            n += 1
        starts.append(n)
    return tuple(starts)
