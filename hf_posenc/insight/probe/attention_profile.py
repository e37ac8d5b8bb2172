"""Attention of a loaded model: the captured calls of its layers, and their weight by query–key distance.

    mass[h, δ] = mean over rows i of w[h, i, i − δ]          δ = query position − key position

Over all distances the mass sums to 1, minus the weight of a learned sink. In a decoder δ ≥ 0. Calls are captured in
patched layers. An unpatched model is therefore patched with ``host`` meanwhile: its own positions, with equal outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.forward.attention import RotatedCall, with_sink
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of, is_patched


@dataclass(frozen=True)
class Profile:
    """Attention profile of one layer.

    Attributes:
        mass: ``[heads, distance]``, float64; the first column is distance ``first_distance``.
        first_distance: 0 in a decoder, −(length − 1) in an encoder.
        sink: weight on the first token, ``[heads]``.
    """

    mass: Tensor
    first_distance: int
    sink: Tensor

    @property
    def distances(self) -> Tensor:
        """Distances of the columns of ``mass``, tokens."""
        return torch.arange(self.first_distance, self.first_distance + self.mass.shape[1])

    @property
    def mean_distance(self) -> Tensor:
        """Mean distance Σ mass · ∣δ∣ / Σ mass, ``[heads]``, tokens."""
        return (self.mass * self.distances.abs()).sum(1) / self.mass.sum(1)

    def within(self, first: int, last: int) -> Tensor:
        """Return the mass at ``first ≤ ∣δ∣ ≤ last``, ``[heads]``."""
        distances = self.distances.abs()
        return self.mass[:, (distances >= first) & (distances <= last)].sum(1)

    def strongest(self) -> tuple[Tensor, Tensor]:
        """Return the distance with the most mass, and that mass, ``[heads]`` each."""
        mass, column = self.mass.max(1)
        return column + self.first_distance, mass


class Tally:
    """Accumulate the attention rows of a layer over texts of one length."""

    def __init__(self, heads: int, length: int, causal: bool) -> None:
        self.first_distance = 0 if causal else 1 - length
        self.rows = 0
        self.mass = torch.zeros(heads, length - self.first_distance, dtype=torch.float64)
        self.sink = torch.zeros(heads, dtype=torch.float64)

    def add(self, rows: slice, weights: Tensor) -> None:
        """Add the ``weights [heads, rows, key]`` of a block of rows."""
        exact = weights.double().cpu()
        columns = torch.arange(rows.start, rows.stop)[:, None] - torch.arange(exact.shape[2]) - self.first_distance
        visible = columns >= 0  # in a decoder, keys after the query have no weight
        self.mass.index_add_(1, columns[visible], exact[:, visible])
        self.sink += exact[:, :, 0].sum(1)
        self.rows += exact.shape[1]

    def profile(self) -> Profile:
        """Return the mean over all rows so far."""
        return Profile(self.mass / self.rows, self.first_distance, self.sink / self.rows)


def edges(length: int) -> list[int]:
    """Return the first distances of doubling bins: 0, 1, 2, 4, 8 … tokens."""
    return [0, *(1 << power for power in range((length - 1).bit_length()))]


def binned(profile: Profile, starts: Sequence[int]) -> Tensor:
    """Sum the mass in bins of ∣δ∣ with the given first distances, ``[heads, bin]``."""
    last = [start - 1 for start in starts[1:]] + [int(profile.distances.abs().max())]
    return torch.stack([profile.within(a, b) for a, b in zip(starts, last, strict=True)], dim=1)


CallCallback = Callable[[int, AttentionCall], None]
"""Called with the index of a layer and its attention call."""


@contextmanager
def with_a_scheme(model: nn.Module) -> Iterator[None]:
    """Patch a model without a scheme with ``host`` inside the block."""
    if is_patched(model):
        yield
        return
    with scheme_set_aside(model):
        patch_model(model, "host")
        yield


@contextmanager
def capture_attention(model: nn.Module, on_call: CallCallback) -> Iterator[None]:
    """Call ``on_call(layer, call)`` for every self-attention of a patched model inside the block."""
    attentions = attentions_of(model)
    try:
        for layer, attention in enumerate(attentions):
            capture(attention, layer, on_call)
        yield
    finally:
        for attention in attentions:
            attention.__dict__.pop("mix", None)


def attentions_of(model: nn.Module) -> list[Any]:
    """Return the self-attention modules of a model, patched or not, in layer order."""
    base, adapter = base_model_of(model)
    return list(base.__dict__.get(ATTENTIONS) or adapter.attentions(base))


def capture(attention: Any, layer: int, on_call: CallCallback) -> None:
    """Wrap the method that computes a rotated call of a patched layer, so that it reports the call.

    The reported call includes the model's own soft cap, as in Gemma 2, and its attention sink, as in gpt-oss. There is
    no KV cache: queries and keys are those of the same tokens.
    """
    mix = attention.mix

    def recorded(call: RotatedCall, host: dict[str, Any], cache: Any) -> Any:
        plan, split, ctx, sink = call.plan, call.split, call.ctx, host.get("s_aux")
        at_read = plan.at_read
        if split.scales_only:  # the model's own function knows no other positions
            positions, at_read = torch.arange(call.values.shape[2], device=ctx.device)[None], ()
            ctx = PositionContext(positions, positions, attention.is_causal, contiguous=True)
        terms = split.terms if sink is None else with_sink(split.terms, sink)
        mask = plan.mask if isinstance(plan.mask, Tensor) and plan.mask.ndim == 4 else None  # None: causality alone
        keys, factor = split.keys_by_region(call.keys), getattr(attention, attention.score_factor)
        reported = AttentionCall(
            call.queries, keys, call.values, terms, ctx, mask, factor, softcap=host.get("softcap"), at_read=at_read
        )
        on_call(layer, reported.with_rotated_keys())
        return mix(call, host, cache)

    attention.__dict__["mix"] = recorded
