"""RoPE++: beside each attention head, a head that reads the imaginary part of RoPE's complex product.

    real head        score[i, j] = Σ_m Re[q_m k*_m e^(i ω_m (i − j))] / √d       RoPE
    imaginary head   score[i, j] = Σ_m Im[q_m k*_m e^(i ω_m (i − j))] / √d       RoPE of −i q

Both heads of a pair have one query, one key and one value. A query and its quarter turn differ by a fixed matrix. So an
imaginary head with a query projection of its own would be an ordinary head: the shared projection is the method.

This is RoPE++ EH (equal heads). Of each two query heads, the second reads the quarter turn of the first's query. Traps:
the query projection of the second head stays in the model, without effect and without gradient. A scheme does not
change a model's shapes, so the model does not get smaller, as the paper's does. Both heads must share a key head: the
model needs an even number of query heads per key head. RoPE++ EC (equal cache) doubles the heads of the output
projection, which no scheme can do.

No parameters. For training from scratch, or long training. The authors rotate whole heads.

Liu, Song, Liu, Huang, Guo, Liu, Lian, He, Qiu 2025, "Beyond Real: Imaginary Extension of Rotary Position Embeddings for
Long-Context LLMs", arXiv:2512.07525; the order of heads as in github.com/OpenMOSS/rope_pp (``imag1``).

    hf-posenc check --model Qwen/Qwen3-0.6B --scheme rope_pp --import examples/schemes/rope_pp.py  # two to a key
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.extend import Base, Geometry, Rotary, UnsupportedModel, register_scheme


@register_scheme("rope_pp", aliases=("imaginary_rope",), paper="2512.07525")
class RoPEPlusPlus(Rotary):
    """RoPE whose query heads form pairs: the second reads the imaginary part of the first's product (EH).

    For models with an even number of query heads per key head. For training.
    """

    formula = r"""
    \mathrm{score}^{\mathrm{re}}_{ij} &= \frac{1}{\sqrt d} \sum_m
      \mathrm{Re} \left[ q_m k^*_m e^{\mathrm{i} \omega_m (i - j)} \right] \\
    \mathrm{score}^{\mathrm{im}}_{ij} &= \frac{1}{\sqrt d} \sum_m
      \mathrm{Im} \left[ q_m k^*_m e^{\mathrm{i} \omega_m (i - j)} \right]
    """

    def __init__(self, geometry: Geometry, *, base: Base | None = None) -> None:
        super().__init__(geometry, base=base)
        if geometry.heads // geometry.kv_heads % 2:
            raise UnsupportedModel(
                f"rope_pp pairs query heads of one key head, but this model has {geometry.heads} query heads and "
                f"{geometry.kv_heads} key heads. Use a model with an even number of query heads per key head."
            )
        if not self.rotates_all:
            raise UnsupportedModel(
                f"rope_pp rotates whole heads, but this model rotates {self.dims} of {geometry.head_dim} channels. "
                "Use a model that rotates all of them."
            )

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Each even query head, followed by its quarter turn −i q."""
        shape, at = ((2, -1), -2) if self.layout == "half" else ((-1, 2), -1)
        own = query[:, ::2]
        real, imaginary = own.unflatten(-1, shape).unbind(at)
        turned = torch.stack((imaginary, -real), dim=at).flatten(-2)
        return torch.stack((own, turned), dim=2).flatten(1, 2), key
