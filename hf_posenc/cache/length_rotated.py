"""KV cache of length-dependent rotations (dynamic NTK): unrotated keys, and a copy rotated for the last query.

Queries of one length read the same rotated keys. While decoding stays within one step of lengths, only the new key is
rotated; the copy is made anew where the length, or the order of the sequences, changes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicLayer

from hf_posenc.cache.key_layout import held_layer
from hf_posenc.cache.preallocated import Buffer, PreallocatedLayer
from hf_posenc.core.tracing import is_traced

RotateColumns = Callable[[slice], Tensor]


class LengthRotatedLayer(PreallocatedLayer):
    """Preallocated layer with a rotated copy of its keys, which a new order of the sequences discards."""

    def __init__(self) -> None:
        super().__init__()
        self.copy: tuple[int, Tensor, Tensor] | None = None  # length, position of the first key, rotated keys
        self.copy_buffer = Buffer()

    def rotated_keys(self, length: int, first: Tensor, rotate: RotateColumns) -> Tensor:
        """All keys, rotated for queries of ``length``, ``[batch, kv_heads, key, head_dim]``.

        Args:
            length: what decides the rotation.
            first: position of the first key, ``[batch or 1]``.
            rotate: rotates some columns of the unrotated keys.
        """
        if torch.is_grad_enabled() and not is_traced():  # recomputed in the backward pass, which must find what it was
            return rotate(slice(None))
        if self.copy is None or self.copy[0] != length or not torch.equal(self.copy[1], first):
            keys = rotate(slice(None))
        else:
            new = rotate(slice(self.copy[2].shape[2], None))
            traced = is_traced()
            keys = torch.cat((self.copy[2], new), dim=-2) if traced else self.copy_buffer.append(self.copy[2], new)
        self.copy = (length, first, keys)
        return keys

    def reset(self) -> None:
        """Empty the layer."""
        self.copy = None
        super().reset()

    def reorder_cache(self, beam_idx: Any) -> None:
        """Beams change places."""
        self.copy = None
        super().reorder_cache(beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """The newest keys go, from both."""
        super().crop(tokens_to_remove)
        if self.copy is not None:
            length, first, keys = self.copy
            self.copy = (length, first, keys[:, :, : self.get_seq_length()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Rows are repeated."""
        self.copy = None
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Rows are chosen."""
        self.copy = None
        super().batch_select_indices(indices)


def install_length_rotation(cache: Cache, by_length: list[bool]) -> None:
    """Give an empty cache layers that keep a copy, where a layer of the model rotates by row."""
    if any(by_length):
        layers = cache.layers or [DynamicLayer() for _ in by_length]
        cache.layers = [
            LengthRotatedLayer() if wanted and type(layer) is DynamicLayer else layer
            for layer, wanted in zip_longest(layers, by_length[: len(layers)])  # T5's may be as many as its encoder's
        ]


def length_rotation_of(
    cache: Cache | None, layer: int | None, rows: int
) -> Callable[[int, Tensor, RotateColumns], Tensor] | None:
    """How a decode query gets its rotated keys; None where the layer keeps no copy, or there are several queries."""
    found = held_layer(cache, layer) if rows == 1 else None
    return found.rotated_keys if isinstance(found, LengthRotatedLayer) else None
