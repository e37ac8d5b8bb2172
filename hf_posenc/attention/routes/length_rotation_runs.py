"""Length-dependent rotation (dynamic NTK) on the kernel: group queries of equal length and run one group at a time.

    run of n rows after m keys:  m keys visible to all of them, and a causal square of n

Keys are rotated for a run and discarded; the backward pass rotates them again. Memory is that of one copy of the keys
for any number of runs.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(frozen=True)
class Runs:
    """The rotations of the queries of a contiguous call.

    Attributes:
        rotations: of every length.
        runs: slices of queries of one length, and that length.
        first: position of the first key.
        ahead: number of keys before the first query.
        keys: number of keys.
        causal: whether later keys are masked.
        device: of the queries.
    """

    rotations: RowRotation
    runs: tuple[tuple[slice, int], ...]
    first: int
    ahead: int
    keys: int
    causal: bool
    device: torch.device

    def __iter__(self) -> Iterator[LengthRun]:
        for rows, length in self.runs:
            own = slice(self.ahead + rows.start, self.ahead + rows.stop)
            rotation = self.rotations.rotation_of(length)
            seen = own.stop if self.causal else self.keys
            cos_sin = table_from(rotation, self.first, seen, self.device)
            if not self.causal or rows.stop - rows.start == 1:
                pieces: tuple[tuple[slice, bool], ...] = ((slice(0, seen), False),)
            else:
                pieces = ((slice(0, own.start), False), (own, True))[own.start == 0 :]
            yield LengthRun(rows, seen, rotation, (cos_sin[0][:, :, own], cos_sin[1][:, :, own]), cos_sin, pieces)


@dataclass(frozen=True)
class LengthRun:
    """Queries of one length, the rotation of them and their keys, and the chunks of keys, causal or not."""

    rows: slice
    seen: int
    rotation: Rotation
    of_queries: Table
    of_keys: Table
    pieces: tuple[tuple[slice, bool], ...]

    def rotated(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The rotated queries and keys of the run."""
        q, k = query[:, :, self.rows], key[:, :, : self.seen]
        return rotate(q, self.rotation, self.of_queries), rotate(k, self.rotation, self.of_keys)

    def inverse_rotated(self, dq: Tensor, dk: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the raw queries and keys: the inverse rotation."""
        (own, partner), (keys_own, keys_partner) = self.of_queries, self.of_keys
        return rotate(dq, self.rotation, (own, -partner)), rotate(dk, self.rotation, (keys_own, -keys_partner))


def table_from(rotation: Rotation, first: int, length: int, device: torch.device) -> Table:
    """`table` at positions ``first, first + 1, …``, the way that is cheapest on a device.

    A processor takes longest for the angles in float64; a GPU for the launches, of which fewer angles need three times
    as many.
    """
    if device.type == "cpu":
        return steady_table(rotation, first, length, device)
    return table(rotation, torch.arange(first, first + length, device=device)[None])


def steady_table(rotation: Rotation, first: int, length: int, device: torch.device) -> Table:
    """`table` at positions ``first, first + 1, …``, by the addition theorem from one angle in ``STEP``.

    Errors are those of three float32 roundings; a run has thousands of angles, used by one layer only.
    """
    starts, steps = torch.arange(first, first + length, STEP, device=device), torch.arange(STEP, device=device)
    own, partner = (t[..., None, :] for t in table(rotation, starts[None]))
    step, step_partner = (t[:, :, None] for t in table(rotation, steps[None]))
    both = (
        (own * step).addcmul_(partner, step_partner, value=-1),
        (partner * step).addcmul_(own, step_partner),
    )  # fmt: skip
    return tuple(t.flatten(2, 3)[:, :, :length] for t in both)  # type: ignore[return-value]


class RotatedRuns(torch.autograd.Function):
    """Rotate and mix run by run; the backward pass does so again, with the merged result."""

    @staticmethod
    def forward(ctx: Any, runs: Runs, scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Mixed values ``[batch, heads, query, value_dim]`` of raw queries and keys."""
        kernel, total = by_device.of(query), PartialSum(query)
        for run in runs:
            q, k = run.rotated(query, key)
            for seen, causal in run.pieces:
                more, lse = kernel.attend(
                    q, k[:, :, seen], value[:, :, seen], causal=causal, mask=None, scale=scale
                )  # fmt: skip
                total.add(run.rows, more, lse)
        out = total.out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total.lse)
        ctx.runs, ctx.scale = runs, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the raw tensors."""
        query, key, value, out, lse = ctx.saved_tensors
        d_query, d_key, d_value = (torch.zeros_like(t) for t in (query, key, value))
        kernel = by_device.of(query)
        for run in ctx.runs:
            rows = run.rows
            q, k = run.rotated(query, key)
            d_q, d_k = torch.zeros_like(q), torch.zeros_like(k)
            for seen, causal in run.pieces:
                dq, dk, dv = kernel.gradient(
                    grad[:, :, rows], q, k[:, :, seen], value[:, :, seen], out[:, :, rows], lse[:, :, rows],
                    causal=causal, mask=None, scale=ctx.scale,
                )  # fmt: skip
                d_q += dq
                d_k[:, :, seen] += dk
                d_value[:, :, seen] += dv
            d_q, d_k = run.inverse_rotated(d_q, d_k)
            d_query[:, :, rows] += d_q
            d_key[:, :, : run.seen] += d_k
        return None, None, d_query, d_key, d_value
