"""Positions of the keys in a KV cache: recorded when a token is cached, one integer per token, for all layers.

A forward pass gets only the positions of new tokens, and cached keys keep the positions they were cached with. So the
cache stores them. If positions run in steps of one and are the same in every sequence, it stores the first one. Else it
stores a tensor, which beam search reorders with the cache. Positions that were not recorded are inferred.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, StaticLayer

from hf_posenc.cache.reorder import follow_rows
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import UnknownKeys
from hf_posenc.schemes.base import Scheme, implements

POSITIONS_ATTRIBUTE = "posenc_key_positions"  # attribute of a cache: its `KeyPositions`

Inferred = Callable[[Tensor], Tensor]  # columns of a cache, [n], to inferred positions, [batch or 1, n]


@dataclass(frozen=True)
class CachedPositions:
    """Positions of all keys of one forward pass, the new ones included.

    Attributes:
        run_start: position of the first key, if positions run in steps of one in every row; else None.
        positions: ``[batch or 1, key]``; None if ``run_start`` defines them.
    """

    run_start: int | None
    positions: Tensor | None = None

    def at(self, columns: Tensor) -> Tensor:
        """Positions of the keys in some columns of the cache, ``[batch or 1, column]``."""
        if self.run_start is not None:
            return columns[None] + self.run_start
        assert self.positions is not None
        positions = self.positions.to(columns.device)
        written = columns.clamp(max=positions.shape[1] - 1)  # a layer may have unwritten places
        return positions[:, written] + (columns - written)


class KeyPositions:
    """Positions of the tokens in a cache.

    Attributes:
        count: number of recorded tokens. After a crop it exceeds the tokens in the cache until the next forward pass.
        run_start: as in `CachedPositions`.
        tokens: positions ``[batch or 1, token]``; None if ``run_start`` defines them. For a static cache it is a buffer
            of the cache's width from the start, so that every compiled step has the same inputs.
    """

    def __init__(self) -> None:
        self.count = 0
        self.run_start: int | None = None
        self.tokens: Tensor | None = None

    def append(self, past: int, new: Tensor, run_start: int | None, inferred: Inferred) -> CachedPositions:
        """Record new tokens in a cache that grows.

        Args:
            past: number of tokens in the cache.
            new: positions of the new tokens, ``[batch or 1, query]``.
            run_start: as in `CachedPositions`, with the new tokens.
            inferred: maps columns of unrecorded tokens to positions.
        """
        if run_start is None:
            columns = torch.arange(past, device=new.device)
            if self.tokens is not None:
                before = self.tokens[:, :past].to(new.device)
            else:
                before = inferred(columns) if self.run_start is None else columns[None] + self.run_start
            rows = max(before.shape[0], new.shape[0])  # symbols in a graph, which len() would specialize
            self.tokens = torch.cat((before.expand(rows, -1), new.expand(rows, -1)), dim=1)
        else:
            self.tokens = None
        self.run_start = run_start
        return CachedPositions(run_start, self.tokens)

    def write(
        self, past: int | Tensor, new: Tensor, run_start: int | None, inferred: Inferred, capacity: int
    ) -> CachedPositions:
        """Record new tokens in a static cache of ``capacity`` tokens; other arguments as in `append`."""
        columns = torch.arange(capacity, device=new.device)
        if self.tokens is None or self.tokens.shape[1] != capacity:
            before = inferred(columns) if self.run_start is None else columns[None] + self.run_start
            self.tokens = _static_buffer(before)
        if len(self.tokens) < len(new):
            self.tokens = _static_buffer(self.tokens.expand(len(new), -1))
        written = columns[: new.shape[1]] + past
        self.tokens.index_copy_(1, written, new.expand(len(self.tokens), -1).to(self.tokens.dtype))
        self.run_start = run_start
        # Unwritten places get positions after the last token.
        ahead = new[:, -1:] + columns - written[-1:]
        return CachedPositions(run_start, torch.where(columns <= written[-1:], self.tokens, ahead))

    def select(self, rows: Tensor) -> None:
        """Reorder the rows like the cache: ``rows [new batch]`` are indices of the old rows."""
        if self.tokens is not None and len(self.tokens) > 1:
            self.tokens = self.tokens[rows.to(self.tokens.device)]

    def repeat(self, repeats: int) -> None:
        """Repeat every row like the cache."""
        if self.tokens is not None and len(self.tokens) > 1:
            self.tokens = self.tokens.repeat_interleave(repeats, dim=0)


HOOKS_READING_KEYS = ("bias", "values", "regions", "visible", "row_rotation", "row_scale", "extra_key_channels", "sink")


def reads_keys(scheme: Scheme) -> bool:
    """Whether a scheme may read key positions for more than rotating each key once by its own position."""
    return scheme.memoized("reads keys", lambda: any(implements(scheme, hook) for hook in HOOKS_READING_KEYS))


def _static_buffer(tokens: Tensor) -> Tensor:
    """Copy to a buffer with a static address, which a compiled step may write to between replays of a CUDA graph."""
    if is_traced():
        return tokens.clone()
    with torch.inference_mode(False):  # the cache may later be used outside of inference mode
        buffer = tokens.clone()
    torch._dynamo.mark_static_address(buffer)
    return buffer


def record_positions(cache: Cache, new: Tensor, padding: Tensor | None, *, count_on: bool) -> CachedPositions:
    """Record the positions of new tokens before a cache takes them; return the positions of all keys.

    Args:
        cache: KV cache of self-attention.
        new: positions of the new tokens, ``[batch or 1, query]``.
        padding: the caller's 2-D mask as bool, ``[batch, key]``; None without padding.
        count_on: whether the positions count on from the tokens in the cache, as the model itself counts.

    Warns:
        UnknownKeys: this model has filled the cache, and then something else has.
    """
    recorded: KeyPositions | None = getattr(cache, POSITIONS_ATTRIBUTE, None)
    if recorded is None:
        recorded = KeyPositions()
        setattr(cache, POSITIONS_ATTRIBUTE, recorded)
    past: Any = cache.get_seq_length()
    inferred = partial(inferred_positions, padding, new, past)
    static = len(cache.layers) > 0 and all(isinstance(x, StaticLayer) and not x.is_sliding for x in cache.layers)
    if is_traced():  # values cannot be read
        starts_at_0 = recorded.run_start == 0 or (recorded.run_start is None and recorded.tokens is None)
        run_start = 0 if count_on and starts_at_0 else None
    else:
        past = int(past)
        _forget_unknown_tokens(recorded, past)
        run_start = _run_start(recorded, past, new, inferred, count_on=count_on)
        recorded.count = past + new.shape[1]
        follow_rows(cache, recorded)
    if static:
        return recorded.write(past, new, run_start, inferred, max(layer.max_cache_len for layer in cache.layers))
    return recorded.append(past, new, run_start, inferred)


def inferred_positions(padding: Tensor | None, new: Tensor, past: int | Tensor, columns: Tensor) -> Tensor:
    """Positions of cached tokens that were not recorded, counted back over real tokens from the newest token.

    Args:
        padding: as in `record_positions`.
        new: positions of the new tokens, ``[batch or 1, query]``.
        past: number of tokens in the cache.
        columns: columns of the cache, ``[column]``.

    Returns:
        ``[batch or 1, column]``.
    """
    newest = torch.arange(1, device=columns.device) + (past + new.shape[1] - 1)
    new = new.to(columns.device)
    return _real_tokens_before(padding, columns) + (new[:, -1:] - _real_tokens_before(padding, newest))


def _forget_unknown_tokens(recorded: KeyPositions, past: int) -> None:
    """Discard the record of a cache that was emptied, or that holds tokens of other origin."""
    if 0 < recorded.count < past:
        warnings.warn(
            f"The cache holds {past - recorded.count} tokens that this model did not write, and their positions are "
            "unknown. They are assumed to come right before the new tokens; if they do not, start with an empty cache.",
            UnknownKeys,
            stacklevel=2,
        )
    if past == 0 or recorded.count < past:
        recorded.run_start = recorded.tokens = None


def _run_start(recorded: KeyPositions, past: int, new: Tensor, inferred: Inferred, *, count_on: bool) -> int | None:
    """Position of the first key, if all keys with the new ones run in steps of one, the same in every row."""
    if recorded.run_start is None and recorded.tokens is not None:
        return None
    if count_on and not recorded.run_start:  # the model counts from 0
        return 0
    first = recorded.run_start
    if first is None:
        before = inferred(torch.zeros(1, dtype=torch.long, device=new.device))
        if len(before) > 1 or before.is_floating_point():
            return None
        first = int(before[0, 0])
    if new.numel() == 1:  # decoding one text needs no tensor
        return first if int(new) == first + past else None
    expected = torch.arange(first + past, first + past + new.shape[1], device=new.device)
    return first if bool((new == expected).all()) else None


def _real_tokens_before(padding: Tensor | None, columns: Tensor) -> Tensor:
    """Number of real tokens before the token in each column, ``[batch or 1, column]``."""
    if padding is None:
        return columns[None]
    counts = padding.to(columns.device).long().cumsum(-1) - 1
    written = columns.clamp(max=padding.shape[1] - 1)  # a static cache has unwritten places
    return counts[:, written] + (columns - written)
