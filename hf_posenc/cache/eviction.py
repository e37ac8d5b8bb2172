"""KV-cache eviction: keep the first and the most recent keys only, O(first + last) memory at any sequence length.

transformers' caches grow or slide. If a scheme never attends to keys in between (`Scheme.kept_keys`), layers of an
empty `DynamicCache` evict these keys. `hf_posenc.forward.keys_in_reach` makes masks for the remaining keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, DynamicLayer

from hf_posenc.cache.key_layout import layer_at
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry, NotTraceable

EVICTS = "posenc_evicts"  # attribute of a cache with evicting layers


class EvictingLayer(DynamicLayer):
    """Cache layer that keeps the first ``first`` and the last ``last`` keys between calls.

    An update also returns all new keys. ``pads`` more columns are kept at the start, for the padding of the rows.
    """

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last, self.pads, self.total = first, last, 0, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values that new queries can see, and drop keys that later queries cannot see.

        Raises:
            NotTraceable: an export traces a step that continues this cache.
        """
        if self.total and torch.compiler.is_exporting():
            raise NotTraceable(
                f"A cache that drops keys counts its tokens in Python ({self.total} here), and an exported step would "
                "be right only at that length. Export the model without a cache (use_cache=False)."
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self._evict(self.keys, key_states), self._evict(self.values, value_states)
        self.total += key_states.shape[-2]
        # One surplus key is dropped with the next update, which saves a copy of all others.
        one_more = keys.shape[-2] <= self.capacity + 1
        self.keys: Tensor = keys if one_more else self._evict(keys)
        self.values: Tensor = values if one_more else self._evict(values)
        return keys, values

    def columns(self, length: int, device: torch.device) -> Tensor:
        """Indices in the sequence of the keys that the next update of ``length`` tokens will return."""
        first = min(self.first + self.pads, self.visible)
        recent = torch.arange(self.total - (self.visible - first), self.total + length, device=device)
        return torch.cat((torch.arange(first, device=device), recent))

    @property
    def capacity(self) -> int:
        """Largest number of keys that are kept for later queries."""
        return self.first + self.pads + self.last

    @property
    def visible(self) -> int:
        """Number of keys in memory that later queries can see."""
        return 0 if self.keys is None or self.keys.numel() == 0 else min(self.keys.shape[-2], self.capacity)

    @property
    def gaps(self) -> bool:
        """Whether keys were dropped."""
        return self.visible < self.total

    @property
    def is_croppable(self) -> bool:
        """Whether the newest keys can be removed: only if no keys were dropped."""
        return not self.gaps

    def get_seq_length(self) -> int:
        """Number of tokens seen so far."""
        return self.total

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the next update returns. With gaps, masks made from it are replaced."""
        return self.visible + query_length, 0

    def reset(self) -> None:
        """Empty the layer."""
        super().reset()
        self.pads = self.total = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest keys.

        Raises:
            BackendCannotCarry: keys were dropped, and some of them would be among the last again.
        """
        if tokens_to_remove == 0:  # assisted generation crops 0 tokens if every guess was right
            return
        if self.gaps:
            raise BackendCannotCarry(
                f"A cache that dropped keys ({self.total - self.visible} of {self.total} here) cannot be cropped, as "
                "assisted decoding and prompt_lookup_num_tokens do. Generate without them."
            )
        super().crop(tokens_to_remove)
        self.total = self.visible

    def _evict(self, states: Tensor, *new: Tensor) -> Tensor:
        """Concatenate the kept keys (or values) and new ones."""
        first = self.first + self.pads
        surplus = 0 if states.numel() == 0 else states.shape[-2] - self.capacity
        if surplus <= 0:
            return torch.cat((states, *new), dim=-2)
        recent = states[..., first + surplus :, :], *new
        return torch.cat((states[..., :first, :], *recent) if first else recent, dim=-2)


def can_evict(positions: Tensor | None, padding: Tensor | None) -> bool:
    """Whether a new text allows eviction: its positions increase, and batches are padded on the left.

    With other padding, the most recent keys are different columns in every sequence.
    """
    if padding is not None and (is_traced() or not is_left_padded(padding)):  # a graph cannot know where padding stands
        return False
    return are_ascending(positions, padding)


def keep_padding(cache: Cache | None, padding: Tensor | None) -> None:
    """Let evicting layers keep columns of padding, too.

    The first real token of a left-padded sequence comes after its padding, which may extend over several chunks.
    """
    if cache is None or padding is None or is_traced():  # a compiled step adds no padding
        return
    evicting = [layer for layer in cache.layers if isinstance(layer, EvictingLayer)]
    if evicting and is_left_padded(padding):
        pads = int((~padding).sum(-1).max())
        for layer in evicting:
            layer.pads = max(layer.pads, pads)


def is_left_padded(padding: Tensor) -> bool:
    """Whether every sequence is padded on the left only; ``padding [batch, key]`` is true at real tokens."""
    return bool((padding.long().diff(dim=-1) >= 0).all())


def is_fresh(cache: Cache | None) -> bool:
    """Whether a cache is growing and empty."""
    return type(cache) is DynamicCache and not any(getattr(layer, "is_initialized", True) for layer in cache.layers)


def are_ascending(positions: Tensor | None, padding: Tensor | None) -> bool:
    """Whether positions ``[batch or 1, token]`` increase from each real token to the next; None counts on.

    Then a key that is no longer among the last ones is outside of every later query's window, too.
    """
    if positions is None or positions.shape[1] < 2 or is_traced():
        return True
    rising = positions.diff(dim=-1) > 0
    if padding is not None:
        rising = rising | ~padding[:, -positions.shape[1] :][:, :-1].to(rising.device)
    return bool(rising.all())


def check_ascending(cache: Cache, positions: Tensor, length: int, padding: Tensor | None) -> None:
    """Raise `BackendCannotCarry` if positions decrease, and layers may have evicted keys that the new tokens would see.

    Padding inside of a text makes positions decrease, too.

    Args:
        cache: KV cache of self-attention.
        positions: positions of all tokens of the text, ``[batch or 1, token]``.
        length: number of new tokens.
        padding: ``[batch, token]``, true at real tokens; None without padding.
    """
    if not any(isinstance(layer, EvictingLayer) for layer in cache.layers):
        return
    if are_ascending(positions[:, -length - 1 :], padding):
        return
    cause, remedy = "The new position_ids go back", "Number the tokens upwards"
    if padding is not None and not is_left_padded(padding):
        cause, remedy = "A row has padding behind its first token", "Pad on the left of the whole text"
    raise BackendCannotCarry(
        f"{cause}, and this cache keeps only the most recent keys. {remedy}, or pass use_cache=False or a StaticCache."
    )


def evicting_layer(cache: Cache | None, layer: int | None) -> EvictingLayer | None:
    """A layer of a cache if it evicts keys; else None."""
    cache_layer = layer_at(cache, layer)
    return cache_layer if isinstance(cache_layer, EvictingLayer) else None


def eviction_state(cache: Cache | None, layer: int | None) -> tuple[int, int, int, int] | None:
    """Numbers that determine the columns of an evicting layer, as a dictionary key; None for other layers."""
    evicting = evicting_layer(cache, layer)
    return None if evicting is None else (evicting.first, evicting.last, evicting.pads, evicting.total)
