"""Where texts begin in a row, as its attention mask says and keywords such as ``cu_seq_lens_q`` repeat; and the masks
that keep texts apart.

The keywords must say what ``position_ids`` or a mask say (`hf_posenc.forward.texts_in_rows`). Where transformers makes
a mask without positions, or none, `separated` keeps the texts apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from hf_posenc.core.context import PositionContext
from hf_posenc.errors import BackendCannotCarry, InvalidInput, MaskMismatch, shown

BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k")
LONGEST = ("max_length_q", "max_length_k")
TEXT_OF_TOKEN = "seq_idx"


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


def check_said(name: str, value: Any, starts: Tensor | None, tokens: Tensor) -> None:
    """Refuse a keyword that says other texts than positions or mask do; on a GPU one text is believed.

    Raises:
        MaskMismatch: the keyword says other texts.
    """
    if not isinstance(value, Tensor) or value.is_floating_point():
        raise InvalidInput(f"{name} must be whole numbers in a tensor, got {shown(value)}. Pass torch.tensor(…).")
    batch, length = tokens.shape[:2]
    if name == TEXT_OF_TOKEN:
        number, same = 1 + int(value.diff(dim=-1).ne(0).sum(-1).max()), value.shape[-1] == length
        said = pad(value.diff(dim=-1) != 0, (1, 0), value=True)
    else:
        number, same = value.numel() - 1, value.ndim == 1 and value.numel() > 1
        if number == batch == 1 and starts is None and value.device.type != "cpu":
            return
        same = same and int(value[0]) == 0 and int(value[-1]) == batch * length and bool((value.diff() > 0).all())
        said = torch.zeros(batch * length, dtype=torch.bool, device=value.device)
        said = said.index_fill_(0, value[:-1].long(), True).view(batch, length) if same else said
    if starts is None:
        starts = (torch.arange(length) == 0)[None]
    if not same or not bool((said == starts.to(said.device)).all()):
        raise MaskMismatch(
            f"{name} packs {number} texts into one row, and neither position_ids nor the attention mask say the same. "
            "Pass position_ids that start again at every text, use_cache=False, and no attention_mask."
        )


def check_longest(keywords: Mapping[str, Any]) -> None:
    """Refuse lengths that are shorter than a text, past which kernels would not read."""
    for borders, name in zip(BORDERS, LONGEST, strict=True):
        if keywords.get(borders) is None or keywords.get(name) is None:
            continue
        longest = int(keywords[borders].diff().max())
        if int(keywords[name]) < longest:
            raise InvalidInput(
                f"{name} is {int(keywords[name])}, and a text has {longest} tokens. Pass {name}={longest}."
            )


def separated(mask: Any, texts: Tensor, ctx: PositionContext, backend: str, host: dict[str, Any], batch: int) -> Any:
    """A mask under which no text of a row sees another's tokens, made once for all layers with the same.

    Args:
        mask: as the layer was called with it, ``[batch or 1, heads or 1, token, token]``, or a package's own; None
            where causality is all there is.
        texts: number of the text of every token, ``[batch or 1, token]``.
        ctx: of the call.
        backend: name of the attention implementation.
        host: the layer's other keywords, by which packages keep texts apart.
        batch: number of rows.

    Raises:
        BackendCannotCarry: the backend takes no such mask, and does not keep the texts apart itself.
    """
    if "flash" in backend and batch == 1:
        apart = host.get("position_ids") is not None or all(host.get(name) is not None for name in (*BORDERS, *LONGEST))
    else:
        apart = isinstance(mask, BlockMask) and not bool(
            (sees_previous(mask, batch, texts.shape[1])[:, 1:] & (texts.diff(dim=-1) != 0)).any()
        )
    if apart:
        return mask
    if "flash" in backend or isinstance(mask, BlockMask):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} does not keep apart the texts that are packed into the rows of this "
            'call. Use model.set_attn_implementation("sdpa") or "eager".'
        )
    whose = None if mask is None else id(mask)  # torch before 2.13 cannot compile the id of None
    return ctx.once(("separated", whose), lambda: (_within_texts(mask, texts.to(ctx.device)), mask))[0]


def _within_texts(mask: Tensor | None, texts: Tensor) -> Tensor:
    own = texts[:, None, :, None] == texts[:, None, None, :]
    if mask is None:
        return own.tril()
    return mask & own if mask.dtype == torch.bool else mask.masked_fill(~own, torch.finfo(mask.dtype).min)
