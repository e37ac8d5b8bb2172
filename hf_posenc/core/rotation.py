"""Rotate channels by position: angles in float64, tables in float32, the rotation in at least float32.

A float32 angle at position 10⁶ is wrong by 1e-2 rad and a bfloat16 one is meaningless; positions are integers and
frequencies Python floats until here.

`CosSinCache` keeps tables between forward passes. Decoding needs one row at a time, evaluation the same rows again and
again: kept is the latest span of positions of each use, and a few positions ahead of it.
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

AT_ONCE = 65_536  # positions whose float64 angles are held at a time
ROWS = 256  # positions rotated at a time without gradient: their working set fits the cache of a CPU core
NUMBERS = 2**24  # rotated at a time on other devices, where each operation is a launch; 64 MiB in float32


def cos_sin(rotation: Rotation, positions: Tensor, decay_steps: Tensor | None = None) -> Table:
    """Cosine and sine of every pair's angle, float32, each ``[batch or 1, position, pairs]``.

    Where the rotation differs by head, they are ``[batch or 1, heads, position, pairs]``.

    Args:
        rotation: frequencies, axes, decay and amplitude.
        positions: ``[batch or 1, position]``, or ``[batch or 1, position, axes]`` where the rotation has axes.
        decay_steps: ``[batch or 1, position]``: pair m is scaled by e^(decay_m · decay_steps); negative steps shrink.
    """
    if not is_traced() and positions.shape[1] > AT_ONCE and not rotation.learned:
        some = (slice(start, start + AT_ONCE) for start in range(0, positions.shape[1], AT_ONCE))
        chunks = [cos_sin(rotation, positions[:, s], None if decay_steps is None else decay_steps[:, s]) for s in some]
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
    """The coordinate that each pair rotates by, ``[batch or 1, position, pairs]``, or 1 where there is only one."""
    if rotation.axes is None:
        return positions[..., None]
    return positions[..., on_device(tuple(rotation.axes), torch.long, positions.device)]


def table(rotation: Rotation, positions: Tensor, decay_steps: Tensor | None = None) -> Table:
    """Factors of every channel and of its partner: each ``[batch or 1, heads or 1, position, dims]``, float32.

    Of a pair (a, b), a becomes a cos − b sin and b becomes b cos + a sin. Arguments are those of `cos_sin`.
    """
    cos, sin = cos_sin(rotation, positions, decay_steps)
    if rotation.layout == "half":
        own, partner = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    else:
        own, partner = cos.repeat_interleave(2, dim=-1), torch.stack((-sin, sin), dim=-1).flatten(-2)
    return (own, partner) if rotation.differs_by_head else (own[:, None], partner[:, None])


def rotate(x: Tensor, rotation: Rotation, cos_sin: Table) -> Tensor:
    """Rotate the first ``rotation.dims`` channels of ``x [batch, heads, position, head_dim]``; same dtype.

    Args:
        x: queries, keys or values.
        rotation: defines which channels are a pair.
        cos_sin: `table` of the positions of ``x``.
    """
    length = x.shape[2]
    if torch.is_grad_enabled() or is_traced() or length <= ROWS:  # last: a comparison ties a graph to its length
        return rotate_at_once(x, rotation.layout, cos_sin)
    out, rows_at_once = torch.empty_like(x), rows_of_chunk(x)
    write = rotate_halves_into if x.device.type == "cuda" else rotate_into
    for start in range(0, length, rows_at_once):
        rows = slice(start, start + rows_at_once)
        some = cos_sin[0][:, :, rows], cos_sin[1][:, :, rows]
        write(out[:, :, rows], x[:, :, rows], rotation.layout, some)
    return out


def rows_of_chunk(x: Tensor) -> int:
    """Positions of ``x [batch, heads, position, head_dim]`` that are rotated at a time without gradient."""
    return ROWS if x.device.type == "cpu" else max(ROWS, NUMBERS * x.shape[2] // max(1, x.numel()))


def rotate_into(out: Tensor, x: Tensor, layout: Layout, cos_sin: Table) -> None:
    """Write what `rotate_at_once` returns."""
    if cos_sin[0].shape[-1] == x.shape[-1] and cos_sin[0].dtype == x.dtype:  # in half the time of a copy
        rotate_at_once(x, layout, cos_sin, out)
    else:
        out.copy_(rotate_at_once(x, layout, cos_sin))


def rotate_halves_into(out: Tensor, x: Tensor, layout: Layout, cos_sin: Table) -> None:
    """The same, the first channels of all pairs and then the second ones.

    Kernels of a GPU convert what they read and write: in half precision this moves half as many bytes.
    """
    dims = cos_sin[0].shape[-1]
    out[..., dims:] = x[..., dims:]
    written, read, own, partner = (halves(t[..., :dims], layout) for t in (out, x, *cos_sin))
    for here, there in ((0, 1), (1, 0)):
        torch.addcmul(read[here] * own[here], read[there], partner[here], out=written[here])


def halves(x: Tensor, layout: Layout) -> Table:
    """The first and the second channels of all pairs, each ``[…, pairs]``."""
    if layout == "half":
        return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x[..., 0::2], x[..., 1::2]


def rotate_at_once(x: Tensor, layout: Layout, cos_sin: Table, out: Tensor | None = None) -> Tensor:
    """Rotate all positions in one operation, as many channels as the tables have; see `rotate`.

    ``out``, where whole heads are to be written, has the dtype of the tables and of ``x``.
    """
    own, partner = cos_sin
    dims, width = own.shape[-1], x.shape[-1]
    rest = None if dims == width else x[..., dims:]
    if rest is not None or x.requires_grad:  # one node for both uses of x: gradients are summed region by region
        x = x[..., :dims]
    half = layout == "half"
    partners = x.roll(dims // 2, dims=-1) if half else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    # In place on the first product: a third less memory traffic than the sum of two.
    rotated = torch.mul(x, own, out=out).addcmul_(partners, partner).to(x.dtype)
    return rotated if rest is None else torch.cat((rotated, rest), dim=-1)


def once(make: Callable[[slice], Table]) -> Callable[[slice], Table]:
    """The same function, which makes the tables of equal columns once: the layers that share it read the same keys."""
    made: dict[tuple[int, int], Table] = {}

    def known(columns: slice) -> Table:
        ends = columns.start, columns.stop
        if ends not in made:
            made[ends] = make(columns)
        return made[ends]

    return known


AHEAD = 256  # rows computed beyond a decoding step
LARGEST = 65_536  # rows worth keeping: 32 MiB for heads of 64
MOST = 128  # spans worth keeping: maps of positions that are made anew for each call have one for each


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
            if len(self.spans) >= MOST:
                self.spans = {}
            self.spans[use, device] = span
        return span.rows(first, count)  # type: ignore[return-value]
