"""Positions of the keys in a KV cache: recorded when a token is cached, one integer a token, shared by the layers.

Only positions of new tokens reach a forward pass. Cached keys keep their positions, however the caller numbers later
tokens, so these are stored with the cache: as one number while they run in steps of one and are the same in every
sequence, else as a tensor that follows the cache through beam search. Positions that were not recorded are inferred.
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

RECORD = "posenc_key_positions"  # attribute of a cache: its `KeyPositions`

Inferred = Callable[[Tensor], Tensor]  # columns of a cache, [n], to the positions they would have, [batch or 1, n]


@dataclass(frozen=True)
class CachedPositions:
    """Positions of all keys of one forward pass, the new ones included.

    Attributes:
        run: position of the first key, where the others follow in steps of one in every row; else None.
        positions: ``[batch or 1, key]``; None where the run says it all.
    """

    run: int | None
    positions: Tensor | None = None

    def at(self, columns: Tensor) -> Tensor:
        """Positions of the keys in some columns of the cache, ``[batch or 1, column]``."""
        if self.run is not None:
            return columns[None] + self.run
        assert self.positions is not None
        known = self.positions.to(columns.device)
        written = columns.clamp(max=known.shape[1] - 1)  # a layer may have places that are not written yet
        return known[:, written] + (columns - written)


class KeyPositions:
    """Positions of the tokens that a cache has taken.

    Attributes:
        count: tokens recorded. After a crop there are more than the cache holds, until the next forward pass.
        run: as in `CachedPositions`.
        tokens: ``[batch or 1, token]``; None while the run says it all. A static cache has a buffer of its own width
            from the start, so that a compiled step finds what the step before it found.
    """

    def __init__(self) -> None:
        self.count = 0
        self.run: int | None = None
        self.tokens: Tensor | None = None

    def append(self, past: int, new: Tensor, run: int | None, inferred: Inferred) -> CachedPositions:
        """Record new tokens in a cache that grows.

        Args:
            past: tokens the cache holds.
            new: positions of the new ones, ``[batch or 1, query]``.
            run: as in `CachedPositions`, with the new tokens.
            inferred: positions of cached tokens that were not recorded.
        """
        if run is None:
            columns = torch.arange(past, device=new.device)
            if self.tokens is not None:
                before = self.tokens[:, :past].to(new.device)
            else:
                before = inferred(columns) if self.run is None else columns[None] + self.run
            rows = max(before.shape[0], new.shape[0])  # of a graph symbols, which len() would make numbers
            self.tokens = torch.cat((before.expand(rows, -1), new.expand(rows, -1)), dim=1)
        else:
            self.tokens = None
        self.run = run
        return CachedPositions(run, self.tokens)

    def write(
        self, past: int | Tensor, new: Tensor, run: int | None, inferred: Inferred, capacity: int
    ) -> CachedPositions:
        """Record new tokens in a static cache of ``capacity`` tokens; the other arguments are those of `append`."""
        columns = torch.arange(capacity, device=new.device)
        if self.tokens is None or self.tokens.shape[1] != capacity:
            known = inferred(columns) if self.run is None else columns[None] + self.run
            self.tokens = _static(known)
        if len(self.tokens) < len(new):
            self.tokens = _static(self.tokens.expand(len(new), -1))
        written = columns[: new.shape[1]] + past
        self.tokens.index_copy_(1, written, new.expand(len(self.tokens), -1).to(self.tokens.dtype))
        self.run = run
        # What is not written yet comes after everything that is.
        ahead = new[:, -1:] + columns - written[-1:]
        return CachedPositions(run, torch.where(columns <= written[-1:], self.tokens, ahead))

    def select(self, rows: Tensor) -> None:
        """Follow the rows of the cache: ``rows [new batch]`` are numbers of the old ones."""
        if self.tokens is not None and len(self.tokens) > 1:
            self.tokens = self.tokens[rows.to(self.tokens.device)]

    @property
    def rows(self) -> int:
        """How many rows differ; 1 where all are the same."""
        return 1 if self.tokens is None else len(self.tokens)


HOOKS_READING_KEYS = ("bias", "values", "regions", "visible", "row_rotation", "row_scale", "extra_key_channels", "sink")


def reads_keys(scheme: Scheme) -> bool:
    """Whether a scheme may read key positions, beyond rotating each key once by its own."""
    return scheme.keep("reads keys", lambda: any(implements(scheme, hook) for hook in HOOKS_READING_KEYS))


def _static(tokens: Tensor) -> Tensor:
    """A copy as a buffer that a compiled step may write to and still replay a CUDA graph."""
    if is_traced():
        return tokens.clone()
    with torch.inference_mode(False):  # the cache may have been made outside of it, and is written to there later
        buffer = tokens.clone()
    torch._dynamo.mark_static_address(buffer)
    return buffer


def record(cache: Cache, new: Tensor, padding: Tensor | None, *, own: bool) -> CachedPositions:
    """Record the positions of the tokens that a cache is about to take, and return those of all its keys.

    Args:
        cache: of self-attention.
        new: positions of the new tokens, ``[batch or 1, query]``.
        padding: the caller's 2-D mask as bool, ``[batch, key]``, if anything is padded.
        own: whether the positions are the model's own, counted on from the tokens in the cache.

    Warns:
        UnknownKeys: the cache was filled by this model, and then by somebody else.
    """
    known: KeyPositions | None = getattr(cache, RECORD, None)
    if known is None:
        known = KeyPositions()
        setattr(cache, RECORD, known)
    past: Any = cache.get_seq_length()
    inferred = partial(inferred_positions, padding, new, past)
    static = len(cache.layers) > 0 and all(isinstance(one, StaticLayer) and not one.is_sliding for one in cache.layers)
    if is_traced():  # values cannot be looked at
        run = 0 if own and known.run in (0, None) and (known.run == 0 or known.tokens is None) else None
    else:
        past = int(past)
        _check_count(known, past)
        run = _run(known, past, new, inferred, own=own)
        known.count = past + new.shape[1]
        follow_rows(cache, known)
    if static:
        return known.write(past, new, run, inferred, max(layer.max_cache_len for layer in cache.layers))
    return known.append(past, new, run, inferred)


def inferred_positions(padding: Tensor | None, new: Tensor, past: int | Tensor, columns: Tensor) -> Tensor:
    """Positions of cached tokens that nobody recorded: as many steps before the newest token as real ones lie between.

    Args:
        padding: as of `record`.
        new: positions of the new tokens, ``[batch or 1, query]``.
        past: tokens the cache holds.
        columns: of the cache, ``[column]``.

    Returns:
        ``[batch or 1, column]``.
    """
    newest = torch.arange(1, device=columns.device) + (past + new.shape[1] - 1)
    new = new.to(columns.device)
    return _counted(padding, columns) + (new[:, -1:] - _counted(padding, newest))


def _check_count(known: KeyPositions, past: int) -> None:
    """Start anew with an emptied cache, or where somebody else has written to it."""
    if 0 < known.count < past:
        warnings.warn(
            f"The cache holds {past - known.count} tokens that this model did not write, and their positions are "
            "unknown. They are assumed to come right before the new tokens; if they do not, start with an empty cache.",
            UnknownKeys,
            stacklevel=2,
        )
    if past == 0 or known.count < past:
        known.run = known.tokens = None


def _run(known: KeyPositions, past: int, new: Tensor, inferred: Inferred, *, own: bool) -> int | None:
    """Position of the first key if all keys then run in steps of one, the same in every row."""
    if known.run is None and known.tokens is not None:
        return None
    if own and not known.run:  # the model's own count from 0
        return 0
    first = known.run
    if first is None:
        before = inferred(torch.zeros(1, dtype=torch.long, device=new.device))
        if len(before) > 1 or before.is_floating_point():
            return None
        first = int(before[0, 0])
    if new.numel() == 1:  # decoding one text: no tensor is made for it
        return first if int(new) == first + past else None
    expected = torch.arange(first + past, first + past + new.shape[1], device=new.device)
    return first if bool((new == expected).all()) else None


def _counted(padding: Tensor | None, columns: Tensor) -> Tensor:
    """How many tokens stand before that in each column, padding left out, ``[batch or 1, column]``."""
    if padding is None:
        return columns[None]
    numbered = padding.to(columns.device).long().cumsum(-1) - 1
    written = columns.clamp(max=padding.shape[1] - 1)  # a static cache is longer than what is written in it
    return numbered[:, written] + (columns - written)
