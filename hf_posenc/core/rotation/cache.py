"""Cache of cosine and sine tables between forward passes.

Decoding needs one row of a table at a time, evaluation the same rows again and again. Kept is the latest span of
positions of each use that a scheme makes of a table, and a few positions ahead of it: O(1) tables at any length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posenc.core.rotation.apply import Table

AHEAD = 256  # rows computed beyond a decoding step
LARGEST = 65_536  # rows worth keeping: 32 MiB for heads of 64


@dataclass(frozen=True)
class Span:
    """The table of positions ``first … end``."""

    first: int
    end: int
    table: Table

    def rows(self, first: int, count: int) -> Table | None:
        """The table of some positions, a view; None if the span lacks some."""
        if first < self.first or first + count > self.end:
            return None
        own, partner = self.table
        return own.narrow(2, first - self.first, count), partner.narrow(2, first - self.first, count)


class CosSinCache:
    """The spans of one scheme, by use. A span is replaced, never modified, so that threads can share it."""

    def __init__(self) -> None:
        self.spans: dict[Hashable, Span] = {}

    def rows(
        self,
        use: Hashable,
        first: int,
        count: int,
        device: torch.device,
        make: Callable[[Tensor], Table],
        ahead: int | None = None,
    ) -> Table:
        """The table of positions ``first … first + count``, each ``[1, 1, count, dims]``.

        Args:
            use: key of the table; the same use always has the same ``make``.
            make: positions ``[1, n]``, int64, to their table.
            ahead: positions to compute beyond those asked for; None for `AHEAD` where one is asked for, and else none.
        """
        span = self.spans.get((use, device))
        known = None if span is None else span.rows(first, count)
        if known is not None:
            return known
        # A table made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            beyond = (AHEAD if count == 1 else 0) if ahead is None else ahead
            end = first + count + beyond
            span = Span(first, end, make(torch.arange(first, end, device=device)[None]))
        if end - first <= LARGEST:
            self.spans[use, device] = span
        return span.rows(first, count)  # type: ignore[return-value]
