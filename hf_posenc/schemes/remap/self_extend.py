"""Self-Extend: near keys keep their exact distance, distances beyond a window are counted in groups of tokens.

    Δ' = i − j                                     for i − j < W
         ⌊i / G⌋ − ⌊j / G⌋ + W − ⌊W / G⌋            beyond          W = window, G = group

Up to (L0 − W) G + W tokens, no distance exceeds the trained length L0, or L0 − 1 if G divides W. The released code
shifts by W − W / G without rounding (``floor="float"``).

Jin et al. 2024, "LLM Maybe LongLM", arXiv:2401.01325, section 3.2; github.com/datamllab/LongLM.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Region
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.remap.rerope import KeyCache, Remap

Floor = Literal["paper", "float"]


@register_scheme("self_extend", aliases=("longlm", "grouped"), zero_shot=True, cache="copies", paper="2401.01325")
class SelfExtend(Remap):
    """Distances beyond ``window`` (default: half the trained length) counted in groups of ``group`` tokens.

    The default group is the smallest that fits the target length. Zero-shot on RoPE models. ``key_cache="one"`` caches
    one copy of each key, and rotates those of the window for each new token.
    """

    formula = r"""
    \Delta' &= \begin{cases}
    i - j & i - j < W \\
    \lfloor i / G \rfloor - \lfloor j / G \rfloor + W - \lfloor W / G \rfloor & \text{beyond}
    \end{cases} \\
    W &= \mathtt{window}, \quad G = \mathtt{group}
    """

    needs_causal = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        group: PositiveInt | None = None,
        window: PositiveInt | None = None,
        floor: Floor = "paper",
        key_cache: KeyCache = "copies",
    ) -> None:
        super().__init__(geometry, window=window, key_cache=key_cache)
        trained, target = geometry.trained_length, geometry.target_length
        smallest = max(1, -(-(target - self.window) // (trained - self.window)))
        self.group = smallest if group is None else group
        if self.group < smallest:
            reach = (trained - self.window) * self.group + self.window
            raise OptionOutOfRange(
                f"group {self.group} with window {self.window} reaches {reach} tokens, but the target length is "
                f"{target}. Use a group of at least {smallest}, or a smaller window."
            )
        self.shift = self.window - (self.window // self.group if floor == "paper" else self.window / self.group)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Near keys at their true distance; far keys by group number, with queries shifted to the window's edge."""
        return Region(self.near), Region(self.far, self.shifted, self.grouped)

    def grouped(self, positions: Tensor) -> Tensor:
        """Group number of a key; float64 for fractional shifts, for which float32 has too few digits at 10⁶."""
        groups = positions // self.group
        return groups.to(torch.float64) if isinstance(self.shift, float) else groups

    def shifted(self, positions: Tensor) -> Tensor:
        """Position of the query of a far key."""
        return self.grouped(positions) + self.shift
