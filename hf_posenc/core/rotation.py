"""Rotate channels by position: angles in float64, tables in float32, the rotation in at least float32.

A float32 angle at position 10⁶ is wrong by 1e-2 rad, and a bfloat16 angle is meaningless. So positions stay integers,
and frequencies stay Python floats, until the angles are computed here.

`CosSinCache` keeps tables between forward passes. Decoding needs one row at a time; evaluation needs the same rows
again and again. The cache keeps the latest span of positions for each use, with a few positions ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posenc.core.constants import exact_dtype, on_device
from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.tracing import is_traced

Table = tuple[Tensor, Tensor]

AT_ONCE = 65_536  # positions per chunk of float64 angles
ROWS = 256  # positions per chunk on a CPU, without gradient: their working set fits the cache of a core
NUMBERS_AT_ONCE = 2**24  # numbers per chunk on other devices, where each operation is a launch; 64 MiB in float32


def cos_sin(rotation: Rotation, positions: Tensor, decay_steps: Tensor | None = None) -> Table:
    """Cosine and sine of every pair's angle, float32, each ``[batch or 1, position, pairs]``.

    If the rotation differs by head, their shape is ``[batch or 1, heads, position, pairs]``.

    Args:
        rotation: frequencies, axes, decay and amplitude.
        positions: ``[batch or 1, position]``, or ``[batch or 1, position, axes]`` if the rotation has axes.
        decay_steps: ``[batch or 1, position]``: pair m is scaled by e^(decay_m · decay_steps); negative steps shrink.
    """
    if not is_traced() and positions.shape[1] > AT_ONCE and not rotation.learned:
        spans = (slice(start, start + AT_ONCE) for start in range(0, positions.shape[1], AT_ONCE))
        chunks = [cos_sin(rotation, positions[:, s], None if decay_steps is None else decay_steps[:, s]) for s in spans]
        return torch.cat([cos for cos, _ in chunks], dim=-2), torch.cat([sin for _, sin in chunks], dim=-2)
    exact = exact_dtype(positions.device)
    angles = coordinates_of(rotation, positions).to(exact) * on_device(rotation.frequencies, exact, positions.device)
    if rotation.differs_by_head:
        angles = angles[:, None] * on_device(rotation.by_head, exact, positions.device)[:, None, None]
    if rotation.amplitude == 1 and (decay_steps is None or not rotation.decay):
        return angles.cos().float(), angles.sin().float()
    size: float | Tensor = rotation.amplitude
    if decay_steps is not None and rotation.decay:
        decay = on_device(tuple(rotation.decay), exact, positions.device)
        steps = decay_steps.to(exact)[..., None]
        size = size * ((steps[:, None] if rotation.differs_by_head else steps) * decay).exp()
    return (angles.cos() * size).float(), (angles.sin() * size).float()


def coordinates_of(rotation: Rotation, positions: Tensor) -> Tensor:
    """Coordinate that rotates each pair, ``[batch or 1, position, pairs]``; the last size is 1 without axes."""
    if rotation.axes is None:
        return positions[..., None]
    return positions[..., on_device(tuple(rotation.axes), torch.long, positions.device)]


def table(rotation: Rotation, positions: Tensor, decay_steps: Tensor | None = None) -> Table:
    """Factors of every channel and of its partner, each ``[batch or 1, heads or 1, position, dims]``, float32.

    In a pair (a, b), a becomes a cos − b sin, and b becomes b cos + a sin. Arguments as in `cos_sin`.
    """
    cos, sin = cos_sin(rotation, positions, decay_steps)
    if rotation.layout == "half":
        own, partner = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    else:
        own, partner = cos.repeat_interleave(2, dim=-1), torch.stack((-sin, sin), dim=-1).flatten(-2)
    return (own, partner) if rotation.differs_by_head else (own[:, None], partner[:, None])


def rotate(x: Tensor, rotation: Rotation, cos_sin: Table) -> Tensor:
    """Rotate the first ``rotation.dims`` channels of ``x [batch, heads, position, head_dim]`` in its dtype.

    Args:
        x: queries, keys or values.
        rotation: defines the pairs of channels.
        cos_sin: `table` of the positions of ``x``.
    """
    length = x.shape[2]
    if torch.is_grad_enabled() or is_traced() or length <= ROWS:  # last: it would specialize a graph to its length
        return rotate_at_once(x, rotation.layout, cos_sin)
    out, rows_at_once = torch.empty_like(x), ROWS
    if x.device.type != "cpu":
        rows_at_once = max(ROWS, NUMBERS_AT_ONCE * length // max(1, x.numel()))
    for start in range(0, length, rows_at_once):
        rows = slice(start, start + rows_at_once)
        tables = cos_sin[0][:, :, rows], cos_sin[1][:, :, rows]
        if x.device.type in ("cpu", "cuda"):
            rotate_into(out[:, :, rows], x[:, :, rows], rotation.layout, tables)
        else:
            out[:, :, rows] = rotate_at_once(x[:, :, rows], rotation.layout, tables)
    return out


def rotate_into(out: Tensor, x: Tensor, layout: Layout, cos_sin: Table) -> None:
    """Write the result of `rotate_at_once` to ``out``: first channels of all pairs, then second channels.

    Kernels convert dtypes when they read and write: in half precision this moves half as many bytes on a GPU.
    """
    dims = cos_sin[0].shape[-1]
    out[..., dims:] = x[..., dims:]
    written, read, own, partner = (halves(t[..., :dims], layout) for t in (out, x, *cos_sin))
    for channel, other in ((0, 1), (1, 0)):
        torch.addcmul(read[channel] * own[channel], read[other], partner[channel], out=written[channel])


def halves(x: Tensor, layout: Layout) -> Table:
    """First and second channels of all pairs, each ``[…, pairs]``."""
    if layout == "half":
        return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x[..., 0::2], x[..., 1::2]


def rotate_at_once(x: Tensor, layout: Layout, cos_sin: Table) -> Tensor:
    """Rotate all positions in one operation, for as many channels as the tables have; see `rotate`."""
    own, partner = cos_sin
    dims, width = own.shape[-1], x.shape[-1]
    unrotated = None if dims == width else x[..., dims:]
    if unrotated is not None or x.requires_grad:  # one node for both uses of x: gradients are summed by region
        x = x[..., :dims]
    half = layout == "half"
    partners = x.roll(dims // 2, dims=-1) if half else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    # In place on the first product: a third less memory traffic than a sum of two products.
    rotated = (x * own).addcmul_(partners, partner).to(x.dtype)
    return rotated if unrotated is None else torch.cat((rotated, unrotated), dim=-1)


def memoized_by_columns(make: Callable[[slice], Table]) -> Callable[[slice], Table]:
    """Memoize ``make`` by columns, for layers that read the same keys."""
    tables: dict[tuple[int, int], Table] = {}

    def memoized(columns: slice) -> Table:
        ends = columns.start, columns.stop
        if ends not in tables:
            tables[ends] = make(columns)
        return tables[ends]

    return memoized


AHEAD = 256  # rows computed ahead of a decoding step
MAX_SPAN_ROWS = 65_536  # longer spans are not kept: 32 MiB for heads of 64
MAX_SPANS = 128  # kept spans: a position map that every call makes anew gets a span for each call


@dataclass(frozen=True)
class Span:
    """The table of positions ``first … end``."""

    first: int
    end: int
    table: Table

    def rows(self, first: int, count: int) -> Table | None:
        """View of the table at some positions; None if the span does not contain all of them."""
        if first < self.first or first + count > self.end:
            return None
        own, partner = self.table
        return own.narrow(2, first - self.first, count), partner.narrow(2, first - self.first, count)


class CosSinCache:
    """Tables of one scheme by use. A span is replaced, never modified, so that threads can share it."""

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
            use: key of the table; the same key always has the same ``make``.
            make: maps positions ``[1, n]``, int64, to their table.
            ahead: number of positions to compute ahead; by default `AHEAD` if ``count`` is 1, else 0.
        """
        span = self.spans.get((use, device))
        rows = None if span is None else span.rows(first, count)
        if rows is not None:
            return rows
        # A table made in inference mode could not be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            if ahead is None:
                ahead = AHEAD if count == 1 else 0
            end = first + count + ahead
            span = Span(first, end, make(torch.arange(first, end, device=device)[None]))
        if end - first <= MAX_SPAN_ROWS:
            if len(self.spans) >= MAX_SPANS:
                self.spans = {}
            self.spans[use, device] = span
        return span.rows(first, count)  # type: ignore[return-value]
