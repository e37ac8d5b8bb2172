"""Rounding errors of scores: low precision at increasing positions, against float64.

What is rounded, one at a time:

    bf16, fp16    embeddings, codes, weights, queries, keys and values are of that type, as in a model cast to it
    int8          queries and keys are float32, and then whole numbers of −127 … 127 times one factor a token and head
    positions     the numbers of the positions are bfloat16, as where ``position_ids`` are cast with the rest

An error is the root mean square of what changed, in units of what the exact scores (less each row's mean, to which
softmax is blind) or outputs (less their mean over rows) differ by. 0.01 is one hundredth of the signal, and
above 1 the signal is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from hf_posenc.core.random_state import drawn_from
from hf_posenc.errors import PosEncError
from hf_posenc.insight.properties.layer import (
    Layer,
    gaussian,
    logits,
    outputs,
)
from hf_posenc.insight.properties.target import PropertyTarget

STARTS_AT = (0, 4096, 65_536, 1_000_000)
TOKENS = 64
ROUNDED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Rounded:
    """The error of one kind of rounding at one start position.

    Attributes:
        scheme: its name.
        kind: what was rounded.
        start: position of the first of 64 tokens.
        scores, outputs: errors, see above; None where the scheme is not defined.
        reason: why there is no number.
    """

    scheme: str
    kind: str
    start: int
    scores: float | None
    outputs: float | None
    reason: str = ""


def precision(target: PropertyTarget, positions: Sequence[int] = STARTS_AT) -> list[Rounded]:
    """All kinds of rounding at all start positions."""
    return [one for start in positions for one in at(target, start)]


def at(target: PropertyTarget, start: int) -> Iterator[Rounded]:
    """All kinds of rounding of a text that begins at ``start``."""
    positions = torch.arange(start, start + TOKENS)[None]
    try:
        exact = evaluate(target.layer(dtype=torch.float64), positions)
    except PosEncError as error:
        reason = str(error).partition(". ")[0]
        for kind in (*ROUNDED, "int8", "positions"):
            yield Rounded(target.name, kind, start, None, None, reason)
        return
    for kind, dtype in ROUNDED.items():
        yield compared(target, kind, start, exact, evaluate(target.layer(dtype=dtype), positions))
    single = target.layer(dtype=torch.float32)
    yield compared(target, "int8", start, exact, evaluate(single, positions, quantised=True))
    rounded = positions.to(torch.bfloat16).long()
    try:
        yield compared(target, "positions", start, exact, evaluate(single, rounded))
    except PosEncError as error:
        yield Rounded(target.name, "positions", start, None, None, str(error).partition(". ")[0])


@torch.no_grad()
def evaluate(layer: Layer, positions: Tensor, *, quantised: bool = False) -> tuple[Tensor, Tensor]:
    """Logits and outputs of 64 different tokens after a norm, in the layer's type."""
    with drawn_from(0):  # a scheme that draws positions draws the same for every type
        return _evaluate(layer, positions, quantised=quantised)


def _evaluate(layer: Layer, positions: Tensor, *, quantised: bool) -> tuple[Tensor, Tensor]:
    content = gaussian(1, positions.shape[1], layer.geometry.width, seed=5).to(layer.dtype)
    call = layer.call(content, content, positions, normed=True)
    if quantised:
        call = replace(call, queries=tuple(map(to_int8, call.queries)), keys=tuple(map(to_int8, call.keys)))
    return logits(call).double(), outputs(call).double()


def to_int8(x: Tensor) -> Tensor:
    """Vectors ``[…, head_dim]`` as whole numbers of −127 … 127 times their largest channel over 127."""
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / step).round() * step


def compared(
    target: PropertyTarget, kind: str, start: int, exact: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> Rounded:
    """The errors of one evaluation."""
    seen = exact[0].isfinite()
    if not bool((other[0].isfinite() | ~seen).all() and other[1].isfinite().all()):
        return Rounded(target.name, kind, start, inf, inf, "numbers overflow")
    scores = [centred(result[0], seen) for result in (exact, other)]
    mixed = [result[1] - exact[1].mean(2, keepdim=True) for result in (exact, other)]
    return Rounded(target.name, kind, start, share(*scores), share(*mixed))


def centred(scores: Tensor, seen: Tensor) -> Tensor:
    """Logits less the mean over the visible keys of their row; 0 where no key is visible."""
    kept = scores.masked_fill(~seen, 0.0)
    return (kept - kept.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)).masked_fill(~seen, 0.0)


def share(exact: Tensor, other: Tensor) -> float:
    """Root mean square of the difference over that of the exact numbers."""
    return float((other - exact).norm() / exact.norm().clamp(min=1e-300))
