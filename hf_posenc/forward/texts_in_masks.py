"""Where texts begin in a row, as far as its attention mask says."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad


def several(starts: Tensor, past: int = 0) -> bool:
    """Whether a row has several texts, of more than a token each: a token alone may be padding."""
    followed = starts & ~pad(starts[:, 1:], (0, 1), value=True)
    return bool((followed.sum(-1) > (past == 0)).any())


def sees_previous(mask: BlockMask, batch: int, length: int) -> Tensor:
    """Whether a token sees the one before it, ``[batch, token]``; the first does not."""
    row = torch.arange(batch, device=mask.kv_indices.device)[:, None]
    token = torch.arange(1, length, device=row.device)
    seen = mask.mask_mod(row, torch.zeros_like(row), token, token - 1)
    return pad(seen.expand(batch, -1), (1, 0), value=False)


def starts_in_mask(mask: Tensor, past: int = 0) -> Tensor:
    """The tokens from which on none sees one before, nor any before sees one of them, ``[batch or 1, token]``.

    Args:
        mask: ``[batch or 1, heads or 1, token, past + token]``; true where a token sees another, or added to scores.
        past: tokens before these.
    """
    seen = (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min).any(1)
    keys, sees = seen.shape[-1], seen.any(-1)
    index = torch.arange(past, keys, device=seen.device)
    first = torch.where(sees, seen.byte().argmax(-1), keys)
    last = torch.where(sees, keys - 1 - seen.flip(-1).byte().argmax(-1), -1)
    earliest = first.flip(-1).cummin(-1).values.flip(-1)  # that it or a later token sees
    latest = pad(last.cummax(-1).values[:, :-1], (1, 0), value=-1)  # that an earlier token sees
    return (earliest >= index) & (latest < index) | (index == 0)


def tokens_of_text(starts: Tensor) -> Tensor:
    """Number of the tokens of each token's text, ``[batch or 1, token]``, which begins where ``starts`` is true."""
    number = starts.cumsum(-1)
    return (number[:, :, None] == number[:, None, :]).sum(-1)
