"""Sliding window: every token attends to its nearest neighbours only.

    causal: 0 ≤ i − j < W          bidirectional: |i − j| < W          W = size

It keeps every distance, and the number of keys, within the range of training. Tokens outside the window contribute only
through deeper layers: layer n reaches n (W − 1) tokens back.

Child, Gray, Radford, Sutskever 2019, arXiv:1904.10509; Beltagy, Peters, Cohan 2020, "Longformer", arXiv:2004.05150.
"""

from __future__ import annotations

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import EVERYTHING, ONE_REGION, Band, Region
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import NotNegativeInt, PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme("window", aliases=("swa", "local"), zero_shot=True, paper="2004.05150")
class Window(Scheme):
    """Attention to the nearest ``size`` tokens (default: the trained length); an encoder's on either side.

    The first ``sinks`` tokens stay visible to all queries, at their true distance; the scheme ``sinks`` counts
    positions inside the cache instead.
    """

    formula = r"""
    \text{causal:} \quad & 0 \le i - j < W \\
    \text{bidirectional:} \quad & |i - j| < W, \qquad W = \mathtt{size}
    """

    replaces_host = False
    chooses_keys = True

    def __init__(self, geometry: Geometry, *, size: PositiveInt | None = None, sinks: NotNegativeInt = 0) -> None:
        super().__init__(geometry)
        self.size = geometry.trained_length if size is None else size
        self.sinks = sinks
        self.idle = frozenset({"visible" if sinks else "regions"})

    def visible(self) -> Band:
        """Distances below the size in each visible direction; with sinks, `regions` has the window instead."""
        return EVERYTHING if self.sinks else self.near

    @property
    def near(self) -> Band:
        """Distances below the size in each visible direction."""
        return Band(0 if self.geometry.causal else 1 - self.size, self.size)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """With sinks, the window and the first keys beyond it; in an encoder, sinks may also follow the query."""
        if not self.sinks:
            return ONE_REGION
        back = Region(self.near), Region(Band(self.size, None, keys_until=self.sinks))
        if ctx.causal or self.sinks <= self.size:  # no sink lies beyond the window after a query
            return back
        return (*back, Region(Band(None, 1 - self.size, keys_until=self.sinks)))

    def native_window(self) -> int | None:
        return self.size if self.geometry.causal and not self.sinks else None

    @property
    def kept_keys(self) -> tuple[int, int]:
        """The keys that a decoder's next token can attend to."""
        return self.sinks, self.size - 1

    @property
    def unchanged_below(self) -> int:
        """The size in a decoder, because the window hides no key of so many first tokens."""
        return self.size if self.geometry.causal else 0
