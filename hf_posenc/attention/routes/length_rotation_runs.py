"""Length-dependent rotation (dynamic NTK) on the kernel: queries of equal length form a run, computed by itself.

    run of n rows after m keys:  m keys visible to all of them, and a causal square of n

Keys are rotated for a run and then discarded; the backward pass rotates them again. So memory holds one rotated copy of
the keys for any number of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.merge import PartialSum
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.rotation import Table, rotate, table
from hf_posenc.core.terms import RowRotation

STEP = 64  # positions between two angles computed in float64


def length_runs(
    rotations: RowRotation,
    runs: tuple[tuple[slice, int], ...],
    first: int,
    ahead: int,
    keys: int,
    *,
    causal: bool,
    device: torch.device,
) -> Iterator[LengthRun]:
    """The runs of queries of equal length in a contiguous call, with their rotations.

    Args:
        rotations: the rotation for every length.
        runs: slices of queries of equal length, each with its length.
        first: position of the first key.
        ahead: number of keys before the first query.
        keys: number of keys.
        causal: whether later keys are masked.
        device: of the queries.
    """
    for rows, length in runs:
        own = slice(ahead + rows.start, ahead + rows.stop)
        rotation = rotations.rotation_of(length)
        seen = own.stop if causal else keys
        pieces: tuple[tuple[slice, bool], ...] = ((slice(0, seen), False),)
        if causal and rows.stop - rows.start > 1:
            before = slice(0, own.start)
            pieces = ((before, False), (own, True)) if own.start > 0 else ((own, True),)
        yield LengthRun(rows, own, seen, rotation, table_from(rotation, first, seen, device), pieces)


@dataclass(frozen=True)
class LengthRun:
    """A run of queries of equal length.

    Attributes:
        rows: the queries.
        own: the keys at the same positions as the queries.
        seen: number of keys that are visible to some query.
        rotation, table: the rotation for this length, and its table at all visible keys.
        pieces: slices of keys for one kernel call each, and whether the call is causal.
    """

    rows: slice
    own: slice
    seen: int
    rotation: Rotation
    table: Table
    pieces: tuple[tuple[slice, bool], ...]

    def rotated(self, query: Tensor, key: Tensor, *, back: bool = False) -> tuple[Tensor, Tensor]:
        """Queries and keys of the run, rotated; or their gradients, rotated ``back``."""
        cos, sin = self.table
        sin = -sin if back else sin
        query_table = cos[:, :, self.own], sin[:, :, self.own]
        return rotate(query, self.rotation, query_table), rotate(key, self.rotation, (cos, sin))


def table_from(rotation: Rotation, first: int, length: int, device: torch.device) -> Table:
    """`table` at positions ``first, first + 1, …``, the way that is cheapest on a device.

    On a GPU, kernel launches dominate. On a processor, thousands of float64 angles per run do, each for one layer only.
    There every ``STEP``-th angle is computed, and the others by the angle sum formulas, with three float32 roundings.
    """
    if device.type != "cpu":
        return table(rotation, torch.arange(first, first + length, device=device)[None])
    starts, steps = torch.arange(first, first + length, STEP, device=device), torch.arange(STEP, device=device)
    own, partner = (t[..., None, :] for t in table(rotation, starts[None]))
    step, step_partner = (t[:, :, None] for t in table(rotation, steps[None]))
    both = (
        (own * step).addcmul_(partner, step_partner, value=-1),
        (partner * step).addcmul_(own, step_partner),
    )  # fmt: skip
    return tuple(t.flatten(2, 3)[:, :, :length] for t in both)  # type: ignore[return-value]


class RotatedRuns(torch.autograd.Function):
    """Rotate and attend run by run. The backward pass rotates again, so that no rotated key is kept."""

    @staticmethod
    def forward(
        ctx: Any, runs: Callable[[], Iterator[LengthRun]], scale: float, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention output ``[batch, heads, query, value_dim]`` of unrotated queries and keys."""
        kernel, total = by_device.kernel_of(query), PartialSum(query)
        for run in runs():
            q, k = run.rotated(query[:, :, run.rows], key[:, :, : run.seen])
            for seen, causal in run.pieces:
                part, part_lse = kernel.attend(
                    q, k[:, :, seen], value[:, :, seen], causal=causal, mask=None, scale=scale
                )  # fmt: skip
                total.add(run.rows, part, part_lse)
        out = total.out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total.lse)
        ctx.runs, ctx.scale = runs, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the unrotated queries and keys, and of the values."""
        query, key, value, out, lse = ctx.saved_tensors
        d_query, d_key, d_value = (torch.zeros_like(t) for t in (query, key, value))
        kernel = by_device.kernel_of(query)
        for run in ctx.runs():
            rows = run.rows
            q, k = run.rotated(query[:, :, run.rows], key[:, :, : run.seen])
            d_q, d_k = torch.zeros_like(q), torch.zeros_like(k)
            for seen, causal in run.pieces:
                dq, dk, dv = kernel.gradient(
                    grad[:, :, rows], q, k[:, :, seen], value[:, :, seen], out[:, :, rows], lse[:, :, rows],
                    causal=causal, mask=None, scale=ctx.scale,
                )  # fmt: skip
                d_q += dq
                d_k[:, :, seen] += dk
                d_value[:, :, seen] += dv
            d_q, d_k = run.rotated(d_q, d_k, back=True)
            d_query[:, :, rows] += d_q
            d_key[:, :, : run.seen] += d_k
        return None, None, d_query, d_key, d_value
