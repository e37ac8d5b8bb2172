"""Routes by themselves: a rotation for each query, bounded scores and sinks, regions cut for the kernel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.routes import band_cuts, length_rotation_rows
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import KeyBias, RowRotation, Terms, ToeplitzBias
from hf_posenc.forward.attention import with_sink

from .formula import mix

KEYS, DIM, SCALING = 90, 8, 8**-0.5


def rotations(pairs: int, layout: Layout) -> RowRotation:
    """Slower by one over the length, as far as a layout goes."""

    def of(lengths: Tensor) -> Tensor:
        return 50 / lengths.double()[..., None] * 0.3 ** torch.arange(pairs).double()

    one = lambda n: Rotation(tuple(of(torch.tensor(n)).tolist()), layout)  # noqa: E731
    return RowRotation(lambda positions: positions + 1, one, of)


def call_of(queries: int, pairs: int, layout: Layout, dtype: torch.dtype, first: int = 0) -> AttentionCall:
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, DIM), (2, 2, KEYS, DIM), (2, 2, KEYS, DIM))
    q, k, v = (torch.randn(shape, generator=draw).to(dtype) for shape in shapes)
    positions = torch.arange(first, first + KEYS)[None]
    ctx = PositionContext(positions[:, KEYS - queries :], positions, causal=True, contiguous=True)
    return AttentionCall((q,), (k,), v, Terms(row_rotation=rotations(pairs, layout)), ctx, None, SCALING)


def expected(call: AttentionCall, pairs: int, layout: Layout) -> Tensor:
    """Row by row with complex numbers, float64."""
    q, k, v = call.queries[0].double(), call.keys[0].double(), call.values.double()
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    first = int(call.ctx.key_positions[0, 0])

    def rotated(x: Tensor, at: Tensor, length: int) -> Tensor:
        part, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        a, b = part.chunk(2, -1) if layout == "half" else (part[..., ::2], part[..., 1::2])
        angles = at[:, None].double() * (50 / length * 0.3 ** torch.arange(pairs).double())
        whole = torch.complex(a, b) * torch.exp(1j * angles)
        if layout == "half":
            return torch.cat((whole.real, whole.imag, rest), -1)
        return torch.cat((torch.stack((whole.real, whole.imag), -1).flatten(-2), rest), -1)

    rows = []
    for i in range(call.query_length):
        last = call.first_query + i
        at, length = torch.arange(first, first + last + 1), first + last + 1
        row, keys = rotated(q[:, :, i : i + 1], at[-1:], length), rotated(k[:, :, : last + 1], at, length)
        rows.append((row @ keys.mT * SCALING).softmax(-1) @ v[:, :, : last + 1])
    return torch.cat(rows, 2)


@pytest.mark.parametrize("at_once", [1, 2**25], ids=["one at a time", "all"])
@pytest.mark.parametrize(("queries", "first"), [(KEYS, 0), (30, 0), (KEYS, 100_000)])
@pytest.mark.parametrize(("pairs", "layout"), [(4, "half"), (4, "interleaved"), (2, "half")])
def test_rows(
    pairs: int, layout: Layout, queries: int, first: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_rotation_rows, "NUMBERS", at_once)
    call = call_of(queries, pairs, layout, torch.float32, first)
    lengths = call.terms.row_rotation.length_of(call.ctx.query_positions)[0]  # type: ignore[union-attr]
    ours = length_rotation_rows.attend(call, lengths)
    assert float((ours.double() - expected(call, pairs, layout)).abs().max()) <= 1e-5
    control = length_rotation_rows.attend(call, 2 * lengths)
    assert float((control.double() - expected(call, pairs, layout)).abs().max()) > 1e-3


HEADS, LENGTH, SLOPE = 2, 9, 0.3


def penalty(distance: Tensor) -> Tensor:
    """A linear penalty of the distance, ``[heads, …]``."""
    return -SLOPE * distance.float().expand(HEADS, *distance.shape)


BIASES = {
    "none": (),
    "toeplitz": (ToeplitzBias(penalty),),
    "key": (KeyBias(SLOPE * torch.arange(LENGTH).float().expand(1, HEADS, -1)),),
}


@pytest.mark.parametrize("queries", [LENGTH, 3, 1])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("softcap", [None, 0.8])
@pytest.mark.parametrize("sink", [None, (0.7, -1.0)])
def test_bounded_scores_and_a_sink(queries: int, bias: str, softcap: float | None, sink: tuple | None) -> None:
    draw = torch.Generator().manual_seed(0)
    q = 3 * torch.randn(1, HEADS, queries, DIM, generator=draw)
    k, v = (torch.randn(1, HEADS, LENGTH, DIM, generator=draw) for _ in range(2))
    positions = torch.arange(LENGTH)[None]
    ctx = PositionContext(positions[:, LENGTH - queries :], positions, causal=True, contiguous=True)
    own = None if sink is None else torch.tensor(sink)
    terms = Terms(bias=BIASES[bias])
    call = AttentionCall(
        (q,), (k,), v, terms if own is None else with_sink(terms, own), ctx, None, DIM**-0.5, softcap=softcap
    )
    distance = (positions[0, LENGTH - queries :, None] - positions).double()
    expected = mix(
        [q.double()], [k.double()], v.double(), distance >= 0, scaling=DIM**-0.5, softcap=softcap,
        bias=0.0 if bias == "none" else -SLOPE * distance, sink=None if own is None else own.double(),
    )  # fmt: skip
    torch.testing.assert_close(dispatch.attend(call).double(), expected, atol=2e-6, rtol=1e-5)


def test_two_sinks_are_one() -> None:
    """A model's own and a scheme's: both stand in the denominator."""
    both = with_sink(Terms(sink=torch.tensor([0.5])), torch.tensor([-0.2])).sink
    assert both is not None
    assert float(both) == pytest.approx(math.log(math.exp(0.5) + math.exp(-0.2)), rel=1e-6)


TEXT = 3 * band_cuts.BLOCK + 37
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


@pytest.mark.skipif(not flash_cpu.available(), reason="this torch has no CPU flash kernel to cut for")
@pytest.mark.parametrize("start", [0, 3, 70, 150])
@pytest.mark.parametrize("kind", CUT)
def test_every_pair_belongs_to_one_region(kind: str, start: int) -> None:
    """Of the region that holds it, and seen or hidden as causality has it, wherever the text begins."""
    for number, band in enumerate(CUT[kind]):
        count = torch.zeros(TEXT, TEXT, dtype=torch.long)
        for part in band_cuts.cut_of(band)(number, band, start, TEXT, count.device):
            seen = torch.ones(part.rows.stop - part.rows.start, part.keys.stop - part.keys.start)
            if part.causal:
                assert seen.shape[0] == seen.shape[1]
                seen = seen.tril()
            if part.mask is not None:
                seen = seen * (part.mask[0, 0] == 0)
            count[part.rows, part.keys] += seen.long()
        i, j = torch.arange(TEXT)[:, None], torch.arange(TEXT)
        assert torch.equal(count, (band.holds(i + start, j + start) & (j <= i)).long())


def test_the_farthest_region_may_come_first() -> None:
    """Then blocks of the next one have rows that no region has reached yet, beside rows that one has."""
    draw = torch.Generator().manual_seed(0)
    far, middle, near, k, v = (torch.randn(1, 4, KEYS, DIM, generator=draw) for _ in range(5))
    at = torch.arange(KEYS)
    terms = Terms(regions=(Region(Band(40, None)), Region(Band(9, 40)), Region(Band(None, 9))))
    ctx = PositionContext(at[None], at[None], causal=True, contiguous=True)
    call = AttentionCall((far, middle, near), (k, k, k), v, terms, ctx, None, SCALING)
    assert dispatch.route(call) == "regions"
    distance = (at[:, None] - at)[..., None]
    query = torch.where(
        distance < 9, near[..., None, :], torch.where(distance < 40, middle[..., None, :], far[..., None, :])
    )
    scores = (query.double() * k[:, :, None].double()).sum(-1) * SCALING
    exact = scores.masked_fill(distance[..., 0] < 0, -torch.inf).softmax(-1) @ v.double()
    assert float((dispatch.attend(call) - exact).abs().max()) < 1e-5
