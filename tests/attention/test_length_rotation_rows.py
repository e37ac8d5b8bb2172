"""A rotation of its own for each query, many queries at a time, as on a GPU; against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import length_rotation_rows
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.terms import RowRotation, Terms

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
