"""Jet-Long: near keys keep their exact distance, distances beyond are counted in groups that grow with the text.

    Δ' = i − j                     for i − j ≤ w            w = window
         ⌊i / G⌋ − ⌊j / G⌋         beyond                   G = max(1, ⌈L / L0⌉),  L0 = trained length

Unlike in `self_extend`, no offset joins the two cases: at the border distances fall from w to w / G. No distance
exceeds L0. L is the length at each query (``length="row"``): texts within L0 are unchanged, and cached decoding equals
a single forward pass. The released code uses the length of the call (``"sequence"``): a prefill gets the groups of its
last token. A decoded token gets those of the length so far, with keys that lower layers computed under a smaller G. All
samples of a batch, and all texts packed in a row, then have the length of the longest.

The cache holds each key once, and each call rotates it from its position to its group: R(⌊j / G⌋ − j) R(j) k. With
``key_cache="copies"`` it holds one copy for every G. With ``length="row"``, G does not grow beyond the target length.

The authors use w = 2,048 with L0 = 32,768. A small Llama trained on 256 tokens needs a greater share: at 8 × L0 its
loss is a nat higher with 16 tokens than with 64.

Tang, Wang, Gu, Han, Cai 2026, "Jet-Long: Efficient Long-Context Extension with Dynamic Bifocal RoPE", arXiv:2607.07740;
github.com/jet-ai-projects/Jet-Long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import ONE_REGION, Band, Region
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.remap.rerope import KeyCache, RotatesKeysByRegion

Length = Literal["row", "sequence"]
Count = TypeVar("Count", int, Tensor)  # a graph has tensors only


@register_scheme("jet_long", zero_shot=True, paper="2607.07740")
class JetLong(RotatesKeysByRegion):
    """Distances beyond ``window`` (default: L0 / 16) counted in groups of ⌈length / L0⌉ tokens. Zero-shot.

    ``length="sequence"`` takes one length for a whole call, as the released code does. Outputs then depend on later
    tokens, and differ with and without cache. ``key_cache="copies"`` caches one copy of each key for every size of
    groups, which saves rotating them for each new token.
    """

    formula = r"""
    \Delta' &= \begin{cases}
    i - j & i - j \le w \\
    \lfloor i / G \rfloor - \lfloor j / G \rfloor & \text{beyond}
    \end{cases} \\
    G &= \max(1, \lceil L / L_0 \rceil), \quad w = \mathtt{window}, \quad \text{$L$: the length at each query}
    """

    replaces_host = False
    needs_rotation: ClassVar[bool] = True
    needs_causal: ClassVar[bool] = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        window: PositiveInt | None = None,
        length: Length = "row",
        key_cache: KeyCache = "one",
    ) -> None:
        super().__init__(geometry, key_cache=key_cache)
        self.window = max(1, geometry.trained_length // 16) if window is None else window
        self.length = length
        if self.window >= max(geometry.trained_length, 2):
            raise OptionOutOfRange(
                f"window must be smaller than the trained length {geometry.trained_length}, got {self.window}. "
                "The default is a sixteenth of it."
            )
        if length == "sequence" and key_cache == "copies":
            raise OptionOutOfRange(
                "length='sequence' groups cached keys anew as the text grows, and key_cache='copies' keeps their "
                "groups. Leave key_cache out."
            )

    @classmethod
    def comparison_options(cls, *, factor: float, trained_length: int) -> dict[str, Any]:
        """The authors' 2,048 tokens, or a quarter of shorter trained lengths: of 256, a sixteenth is too few."""
        return {"window": max(1, min(2048, trained_length // 4))}

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Near keys at their true distance; far keys in groups, whose size is that of each row or of the whole call."""
        near = Region(Band(None, self.window + 1))
        far = tuple(self.far_of_call(ctx) if self.length == "sequence" else self.far_by_row(ctx))
        return (near, *far) if far else ONE_REGION

    def far_by_row(self, ctx: PositionContext) -> Iterator[Region]:
        """Far keys, one region for the rows of each group size that may occur; no region if every size is 1."""
        trained, largest = self.geometry.trained_length, self.group_size(self.geometry.target_length)
        first, last = 2, largest
        if ctx.first is not None and self.caches_one_key and not is_traced():  # else regions must be equal in all calls
            end = ctx.first + ctx.query_positions.shape[1]
            first, last = max(2, min(self.group_size(ctx.first + 1), largest)), min(self.group_size(end), largest)
        if last == 1:
            return
        yield self.far(1, Band(self.window + 1, None, rows_until=trained))
        for size in range(first, last + 1):
            until = size * trained if size < largest else None
            yield self.far(size, Band(self.window + 1, None, rows_from=(size - 1) * trained, rows_until=until))

    def far_of_call(self, ctx: PositionContext) -> Iterator[Region]:
        """All far pairs in groups of one size, after an empty region at whose true positions keys are cached."""
        band = Band(self.window + 1, None)
        yield self.far(1, Band(self.window + 1, None, rows_until=0))
        if is_traced():  # the graph is for any length, and groups may be of one token
            grouped = partial(torch.floor_divide, other=self.group_size(ctx.query_positions.max() + 1))
            yield Region(band, grouped, grouped)
            return
        last = ctx.once("jet_long: last position", lambda: int(ctx.query_positions.max()))
        yield self.far(self.group_size(last + 1), band)

    def group_size(self, length: Count) -> Count:
        """G for a length."""
        return -(-length // self.geometry.trained_length)

    def far(self, size: int, band: Band) -> Region:
        """A region whose distances count groups; a group of one token is the position itself."""
        return Region(band) if size == 1 else Region(band, Grouped(size), Grouped(size))

    @property
    def unchanged_below(self) -> int:
        """The trained length; with ``length="sequence"``, the length up to which every key is near."""
        return self.geometry.trained_length if self.length == "row" else self.window + 1


@dataclass(frozen=True)
class Grouped:
    """Map from positions to group numbers."""

    size: int

    def __call__(self, positions: Tensor) -> Tensor:
        return positions // self.size
