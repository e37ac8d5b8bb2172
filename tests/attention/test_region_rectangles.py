"""Partition of regions into rectangles for the kernel, and length-dependent rotations of long texts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.routes import (
    band_cuts,
)
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Terms

from .formula import mix

pytestmark = pytest.mark.skipif(not flash_cpu.available(), reason="this torch has no CPU flash kernel to cut for")

LENGTH = 3 * band_cuts.BLOCK + 37
LIMIT = 1e-5  # of float32, as in the rest of this folder
CUT = {
    "narrow band": (Band(None, 20), Band(20, None)),
    "wide band": (Band(None, band_cuts.BLOCK + 131), Band(band_cuts.BLOCK + 131, None)),
    "two bands": (Band(None, 100), Band(100, 500), Band(500, None)),
    "chunks": (Band(None, 1, chunk=150), Band(1, 2, chunk=150), Band(2, None, chunk=150)),
    "first keys": (Band(None, 300), Band(300, None, keys_until=9)),
    "rows": (Band(rows_until=400), Band(rows_from=400)),
}


def sides(*shape: int, grad: bool = False) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=draw).requires_grad_(grad) for _ in range(3)]


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


@pytest.mark.parametrize("queries", [LENGTH, 290, 7])
@pytest.mark.parametrize("kind", CUT)
def test_regions_on_a_text_and_on_its_last_rows(kind: str, queries: int) -> None:
    """The last rows are a chunk of a long prompt: its keys are in the cache already."""
    bands = CUT[kind]
    q, k, v = zip(*(sides(2, 2, LENGTH, 8, grad=True) for _ in bands), strict=True)
    q, k = [x[:, :, -queries:] * (1 + n) for n, x in enumerate(q)], [x[:, :1] for x in k]
    value = v[0][:, :1]
    terms = Terms(regions=tuple(map(Region, bands)))
    call = AttentionCall(tuple(q), tuple(k), value, terms, context(LENGTH, queries), None, 8**-0.5)
    assert dispatch.route(call) == "regions_cpu"
    i, j = torch.arange(LENGTH - queries, LENGTH)[:, None], torch.arange(LENGTH)
    exact = [[x.detach().double().requires_grad_() for x in some] for some in (q, k, [value])]
    expected = mix(
        exact[0], exact[1], exact[2][0], (j <= i)[None, None], scaling=8**-0.5,
        claims=[band.holds(i, j)[None, None] for band in bands],
    )  # fmt: skip
    mixed = dispatch.attend(call)
    assert float((mixed.double() - expected).detach().abs().max()) <= LIMIT
    weight = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((mixed * weight).sum(), [*q, *k, value])
    theirs = torch.autograd.grad((expected * weight.double()).sum(), [x for some in exact for x in some])
    for one, other in zip(ours, theirs, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max().clamp(min=1e-9)) <= LIMIT
