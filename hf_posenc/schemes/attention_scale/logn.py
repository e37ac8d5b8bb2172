"""Log-n scaling: sharpen attention as the number of keys grows, so that its entropy stays as in training.

    q_i ← q_i · max(1, ln n_i / ln L0)          n_i = tokens up to query i, L0 = trained length

n_i is i + 1 in a decoder; in an encoder it is the number of unpadded tokens. Those that a window hides count, too.
``clip=False`` leaves out the maximum, for models trained with it.

Su 2021, kexue.fm/archives/8823; Chiang, Cholak 2022, arXiv:2202.12172.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import LengthContradiction
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme("logn", aliases=("entropy_scale",), zero_shot=True, paper="https://kexue.fm/archives/8823")
class LogN(Scheme):
    """Queries scaled by the logarithm of their number of keys. Works on top of any positions."""

    formula = r"""
    q_i &\leftarrow q_i \cdot \max \left( 1, \, \frac{\ln n_i}{\ln L_0} \right) \\
    n_i &= \text{tokens up to query $i$}, \quad L_0 = \text{trained length}
    """

    replaces_host = False

    def __init__(self, geometry: Geometry, *, clip: bool = True) -> None:
        super().__init__(geometry)
        if geometry.trained_length < 2:
            raise LengthContradiction("logn needs a trained length of at least 2, got 1. Pass trained_length=.")
        self.clip = clip

    def query_scale(self, ctx: PositionContext) -> Tensor:
        """Factor of each query, ``[batch or 1, query or 1]``, float32."""
        key = ("logn", self.geometry.trained_length, self.clip)
        return ctx.once(key, lambda: self._scale(keys_seen(ctx)))

    def _scale(self, keys: Tensor) -> Tensor:
        trained = self.geometry.trained_length
        scale = keys.float().log() / math.log(trained)
        return torch.where(keys > trained, scale, 1.0) if self.clip else scale

    @property
    def unchanged_below(self) -> int:
        """The trained length in a decoder; in an encoder all queries change at once."""
        return self.geometry.trained_length if self.clip and self.geometry.causal else 0


def keys_seen(ctx: PositionContext) -> Tensor:
    """Number of tokens up to each query, or unpadded ones in an encoder, ``[batch or 1, query or 1]``."""
    if ctx.causal:
        return (ctx.query_positions + 1).clamp(min=1)  # at least its own; CAPE may shift positions below 0
    if ctx.text_keys is not None:
        return ctx.text_keys
    if ctx.real_keys is None:
        return torch.full((1, 1), ctx.key_positions.shape[1], device=ctx.device)
    return ctx.real_keys.sum(-1, keepdim=True)
