"""STRING: shifted rotary position embedding, which maps far keys to distances that were more frequent in training.

    Δ' = Δ for Δ < S,  Δ − S + W beyond         Δ = i − j, S = shift, W = local

Long distances are rare in training, so their rotations are badly learned even within the trained length; reducing them
by S − W maps them to frequent ones. Keys are rotated once: only the queries of the far region are rotated by another
angle. Δ = S belongs to the far region (the released code computes it in both).

An et al. 2024, "Why Does the Effective Context Length of LLMs Fall Short?", arXiv:2410.18745, section 4;
github.com/HKUNLP/STRING.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Band, Region
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme("string", aliases=("shifted",), zero_shot=True, paper="2410.18745")
class String(Scheme):
    """Distances from ``shift`` on are lowered by shift − ``local``. Zero-shot on RoPE models, within their length.

    The default shift is a third of the trained length. The default local distance is 128, or a sixteenth of the trained
    length where that is less. Up to trained length + shift − local tokens no distance is new to the model.
    """

    formula = r"""
    \Delta' &= \begin{cases}
    \Delta & \Delta < S \\
    \Delta - S + W & \Delta \ge S
    \end{cases} \\
    \Delta &= i - j, \quad S = \mathtt{shift}, \quad W = \mathtt{local}
    """

    replaces_host = False
    needs_rotation = True
    needs_causal = True

    def __init__(
        self, geometry: Geometry, *, shift: PositiveInt | None = None, local: PositiveInt | None = None
    ) -> None:
        super().__init__(geometry)
        trained = geometry.trained_length
        self.shift = max(2, trained // 3) if shift is None else shift
        self.local = max(1, min(128, trained // 16)) if local is None else local
        if not self.local <= self.shift < max(trained, 3):
            raise OptionOutOfRange(
                f"local ≤ shift < trained length must hold, got {self.local}, {self.shift} and {trained}. "
                "The paper has 128 and a third to a half of the trained length."
            )

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Near pairs, and far pairs with shifted queries; the positions of keys are unchanged."""
        return Region(Band(None, self.shift)), Region(Band(self.shift, None), self.shifted)

    def shifted(self, positions: Tensor) -> Tensor:
        """Position of a query for its far keys."""
        return positions - self.shift + self.local

    @property
    def unchanged_below(self) -> int:
        return self.shift
