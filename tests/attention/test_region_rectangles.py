"""Partition of regions into rectangles for the kernel, and length-dependent rotations of long texts."""

from __future__ import annotations

import pytest
import torch

from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.routes import (
    band_cuts,
)
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band

pytestmark = pytest.mark.skipif(not flash_cpu.available(), reason="this torch has no CPU flash kernel to cut for")

LENGTH = 3 * band_cuts.BLOCK + 37
CUT = {
    "narrow band": (Band(None, 20), Band(20, None)),
    "wide band": (Band(None, band_cuts.BLOCK + 131), Band(band_cuts.BLOCK + 131, None)),
    "two bands": (Band(None, 100), Band(100, 500), Band(500, None)),
    "chunks": (Band(None, 1, chunk=150), Band(1, 2, chunk=150), Band(2, None, chunk=150)),
    "first keys": (Band(None, 300), Band(300, None, keys_until=9)),
    "rows": (Band(rows_until=400), Band(rows_from=400)),
    "far keys of rows": (Band(None, 70), Band(70, None, rows_until=400), Band(70, None, rows_from=400, rows_until=500)),
}


def context(keys: int, queries: int, first: int = 0) -> PositionContext:
    positions = torch.arange(first, first + keys)[None]
    return PositionContext(positions[:, keys - queries :], positions, causal=True, contiguous=True)


@pytest.mark.parametrize("start", [0, 3, 70, 150])
@pytest.mark.parametrize("kind", CUT)
def test_every_pair_belongs_to_one_region(kind: str, start: int) -> None:
    """Of the region that holds it, and seen or hidden as causality has it, wherever the text begins."""
    for number, band in enumerate(CUT[kind]):
        count = torch.zeros(LENGTH, LENGTH, dtype=torch.long)
        for part in band_cuts.cut_of(band)(number, band, start, LENGTH, count.device):
            seen = torch.ones(part.rows.stop - part.rows.start, part.keys.stop - part.keys.start)
            if part.causal:
                assert seen.shape[0] == seen.shape[1]
                seen = seen.tril()
            if part.mask is not None:
                seen = seen * (part.mask[0, 0] == 0)
            count[part.rows, part.keys] += seen.long()
        i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
        assert torch.equal(count, (band.holds(i + start, j + start) & (j <= i)).long())
