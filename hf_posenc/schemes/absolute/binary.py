"""Binary positions: the binary digits of the position, one per channel, added to the token embedding.

    x_p[b] ← x_p[b] + α bit_b(p),  bit_b(p) = ⌊p / 2^b⌋ mod 2          252 is 11111100, highest digit first

It is bounded, and different for every position below 2^width, but discontinuous: 6 and 7 differ in one channel, 7 and 8
in four. No linear map advances the code by one position. Sinusoids are a smooth analogue: digit b changes every 2^b
tokens.

Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", kazemnejad.com, and many textbooks. Nothing is
learned; for models trained with it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hf_posenc.core.context import check_table_rows
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.absolute.integer import refuse_zero
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme

ALL_DIGITS = MAX_LENGTH.bit_length()


@register_scheme(
    "binary", aliases=("bits",), paper="https://kazemnejad.com/blog/transformer_architecture_positional_encoding/"
)
class Binary(Scheme):
    """The binary digits of the position in the first ``width`` channels, lowest first; zeros in the others.

    By default there are digits for the longest sequence allowed, limited by the width of the model. ``values="pm1"``
    writes −1 for 0.
    """

    formula = r"""
    x_p[b] &\leftarrow x_p[b] + \alpha \, \mathrm{bit}_b(p) \\
    \mathrm{bit}_b(p) &= \left\lfloor p / 2^b \right\rfloor \bmod 2 \\
    252 &= 11111100_2 \quad \text{highest digit first}
    """

    whole_positions = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        width: PositiveInt | Literal["auto"] = "auto",
        msb_first: bool = False,
        values: Literal["01", "pm1"] = "01",
        alpha: float = 1.0,
    ) -> None:
        super().__init__(geometry)
        refuse_zero(alpha)
        self.digits = min(geometry.code_width, ALL_DIGITS) if width == "auto" else width
        if self.digits > geometry.code_width:
            raise OptionOutOfRange(
                f"width must be at most the model's {geometry.code_width} channels, got {width}. "
                "Fewer digits reach 2^width."
            )
        self.msb_first, self.signed, self.alpha = msb_first, values == "pm1", alpha

    def embed(self, positions: Tensor) -> Tensor:
        """Codes of ``positions [batch or 1, query]``, ``[batch or 1, query, width]``, float32.

        Raises:
            PositionOutOfTable: a position has more digits than ``width``.
        """
        check_table_rows(positions, self.longest, self.record.name)
        digit = torch.arange(min(self.digits, ALL_DIGITS), device=positions.device)
        code = positions[..., None] // 2**digit % 2  # ONNX has no shift of signed numbers
        code = nn.functional.pad(code, (0, self.digits - len(digit)))
        code = code.flip(-1) if self.msb_first else code
        code = 2 * code - 1 if self.signed else code
        return nn.functional.pad(self.alpha * code.float(), (0, self.geometry.code_width - self.digits))

    @property
    def longest(self) -> int | None:
        """2^width; None if that exceeds the longest sequence allowed."""
        return 2**self.digits if self.digits < ALL_DIGITS else None
