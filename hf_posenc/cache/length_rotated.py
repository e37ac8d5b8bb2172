"""KV cache for length-dependent rotations (dynamic NTK): unrotated keys, and a copy rotated for the last query.

Queries with the same effective length read the same rotated keys. While that length stays the same, decoding rotates
only the new key. The copy is made anew when the length or the order of the sequences changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from hf_posenc.cache.key_layout import layer_at
from hf_posenc.cache.preallocated import Buffer, PreallocatedLayer
from hf_posenc.core.tracing import is_traced

RotateColumns = Callable[[slice], Tensor]


class LengthRotatedLayer(PreallocatedLayer):
    """Preallocated layer with a rotated copy of its keys; reordering the sequences discards the copy."""

    def __init__(self) -> None:
        super().__init__()
        self.copy: tuple[int, Tensor, Tensor] | None = None  # length, position of the first key, rotated keys
        self.copy_buffer = Buffer()

    def rotated_keys(self, length: int, first: Tensor, rotate: RotateColumns) -> Tensor:
        """All keys, rotated for queries of ``length``, ``[batch, kv_heads, key, head_dim]``.

        Args:
            length: effective length, which defines the rotation.
            first: position of the first key, ``[batch or 1]``.
            rotate: returns the keys of some columns, rotated.
        """
        if torch.is_grad_enabled() and not is_traced():  # a backward pass must not find a later copy
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
        """Reorder the beams, and discard the copy."""
        self.copy = None
        super().reorder_cache(beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest keys, also from the copy."""
        super().crop(tokens_to_remove)
        if self.copy is not None:
            length, first, keys = self.copy
            self.copy = (length, first, keys[:, :, : self.get_seq_length()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat the rows, and discard the copy."""
        self.copy = None
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows, and discard the copy."""
        self.copy = None
        super().batch_select_indices(indices)


def rotated_keys_of(
    cache: Cache | None, layer: int | None, rows: int
) -> Callable[[int, Tensor, RotateColumns], Tensor] | None:
    """`LengthRotatedLayer.rotated_keys` of a layer for a decode query; None for several queries or another layer."""
    cache_layer = layer_at(cache, layer) if rows == 1 else None
    return cache_layer.rotated_keys if isinstance(cache_layer, LengthRotatedLayer) else None
