"""Rows of tokens that a benchmark runs on.

full      every row has all tokens
padded    rows of ever fewer tokens, down to half of them, with padding: on the left for a decoder, else on the right
packed    documents one after the other in every row, each with positions from zero, and no attention between them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DOCUMENTS = 4
"""Of a packed row."""
IGNORED = -100  # label of a token that has no loss


@dataclass(frozen=True)
class BenchRows:
    """A batch.

    Attributes:
        ids: ``[row, token]``.
        mask: ``[row, token]``, 0 at padding; None without any.
        positions: ``[row, token]`` of packed documents; else None.
    """

    ids: Tensor
    mask: Tensor | None = None
    positions: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Tokens that are no padding."""
        return self.ids.numel() if self.mask is None else int(self.mask.sum())

    @property
    def labels(self) -> Tensor:
        """The tokens as labels, ``[row, token]``."""
        return self.ids if self.mask is None else self.ids.masked_fill(self.mask == 0, IGNORED)

    @property
    def keywords(self) -> dict[str, Tensor]:
        """What a forward pass is given besides the tokens."""
        given = {"attention_mask": self.mask, "position_ids": self.positions}
        return {name: tensor for name, tensor in given.items() if tensor is not None}


def full(ids: Tensor, *, causal: bool) -> BenchRows:
    """Every row as it is."""
    return BenchRows(ids)


def padded(ids: Tensor, *, causal: bool) -> BenchRows:
    """Rows of ever fewer tokens."""
    rows, length = ids.shape
    missing = torch.linspace(0, length // 2, rows, device=ids.device).long()[:, None]
    place = torch.arange(length, device=ids.device).expand_as(ids)
    return BenchRows(ids, ((place >= missing) if causal else (place < length - missing)).long())


def packed(ids: Tensor, *, causal: bool) -> BenchRows:
    """Documents one after the other."""
    longest = -(-ids.shape[1] // DOCUMENTS)
    return BenchRows(ids, positions=(torch.arange(ids.shape[1], device=ids.device) % longest).expand_as(ids))


KINDS: dict[str, Callable[..., BenchRows]] = {"full": full, "padded": padded, "packed": packed}
