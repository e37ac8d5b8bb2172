"""Cache of cosines and sines between forward passes.

Decoding asks for one row of a table at a time, evaluation for the same rows again and again. What is kept is the last
run of positions of each use a scheme makes of a table, and a little ahead of it: O(1) tables, however long the text.
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
class Run:
    """The table of positions ``first … end``."""

    first: int
    end: int
    turn: Table

    def rows(self, first: int, count: int) -> Table | None:
        """The table of some positions, a view; None if they are not all here."""
        if first < self.first or first + count > self.end:
            return None
        rows = slice(first - self.first, first - self.first + count)
        return self.turn[0][:, :, rows], self.turn[1][:, :, rows]


class CosSinCache:
    """The runs of one scheme, by use. A run is replaced, never changed: threads may share them."""

    def __init__(self) -> None:
        self.runs: dict[Hashable, Run] = {}

    def rows(
        self, use: Hashable, first: int, count: int, device: torch.device, make: Callable[[Tensor], Table]
    ) -> Table:
        """The table of positions ``first … first + count``, each ``[1, 1, count, dims]``.

        Args:
            use: what the table is for; the same use always has the same ``make``.
            make: positions ``[1, n]``, int64, to their table.
        """
        run = self.runs.get((use, device))
        known = None if run is None else run.rows(first, count)
        if known is not None:
            return known
        # A table made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            end = first + count + (AHEAD if count == 1 else 0)
            run = Run(first, end, make(torch.arange(first, end, device=device)[None]))
        if end - first <= LARGEST:
            self.runs[use, device] = run
        return run.rows(first, count)  # type: ignore[return-value]
