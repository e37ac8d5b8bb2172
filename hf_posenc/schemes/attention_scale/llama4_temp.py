"""Llama 4's attention temperature: scale queries by the logarithm of their position, in steps.

    q_i ← q_i · (1 + scale · ln(1 + ⌊(p_i + offset) / floor⌋))

1.0 up to position 8190, 1.0693 from 8191 on, 1.283 at 131071. Llama 4 has it on its layers without RoPE
(``layers={"3::4": "none+llama4_temp"}``); Ministral 3 has ``offset=0``, one position later, on all.

Meta 2025, Llama 4 (transformers ``Llama4TextAttention``); the idea after Nakanishi 2025, arXiv:2501.19399.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import NotNegative, PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme(
    "llama4_temp",
    aliases=("attn_temperature",),
    zero_shot=True,
    paper="https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E",
)
class Llama4Temperature(Scheme):
    """Queries scaled by the logarithm of their position, a step every ``floor`` tokens. Works on top of any positions.

    Positions below the first step are unchanged.
    """

    formula = r"""
    q_i \leftarrow q_i \left( 1 + \mathtt{scale} \cdot
      \ln \left( 1 + \left\lfloor \frac{p_i + \mathtt{offset}}{\mathtt{floor}} \right\rfloor \right) \right)
    """

    replaces_host = False
    needs_causal = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        scale: NotNegative = 0.1,
        floor: PositiveInt = 8192,
        offset: Literal[0, 1] = 1,
    ) -> None:
        super().__init__(geometry)
        self.scale, self.floor, self.offset = scale, floor, offset

    def query_scale(self, ctx: PositionContext) -> Tensor:
        """Factor of each query, ``[batch or 1, query]``, float32; 1 at negative positions, which CAPE may cause."""
        return ctx.once(
            ("llama4_temp", self.scale, self.floor, self.offset),
            lambda: 1 + self.scale * ((ctx.query_positions + self.offset) // self.floor).clamp(min=0).float().log1p(),
        )

    @property
    def unchanged_below(self) -> int:
        """The position of the first step."""
        return max(self.floor - self.offset, 0)
