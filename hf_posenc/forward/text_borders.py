"""Borders of packed texts in attention masks and in keywords such as ``cu_seq_lens_q``, and masks that separate texts.

The keywords must agree with ``position_ids`` or the mask (`hf_posenc.forward.texts_in_rows`). transformers may make no
mask, or a mask that ignores positions; then `separate_texts` makes the mask of each layer.
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

CU_SEQ_LENS = ("cu_seq_lens_q", "cu_seq_lens_k")
MAX_LENGTHS = ("max_length_q", "max_length_k")
TEXT_OF_TOKEN = "seq_idx"


def has_several_texts(starts: Tensor, past: int = 0) -> bool:
    """Whether a row has several texts of two or more tokens. Texts of one token may be padding."""
    followed = starts & ~pad(starts[:, 1:], (0, 1), value=True)
    return bool((followed.sum(-1) > (past == 0)).any())


def sees_previous(mask: BlockMask, batch: int, length: int) -> Tensor:
    """Whether each token sees the token before it, bool ``[batch, token]``; false for the first token."""
    row = torch.arange(batch, device=mask.kv_indices.device)[:, None]
    token = torch.arange(1, length, device=row.device)
    seen = mask.mask_mod(row, torch.zeros_like(row), token, token - 1)
    return pad(seen.expand(batch, -1), (1, 0), value=False)


def text_starts(mask: Tensor, past: int = 0) -> Tensor:
    """First token of each text, bool ``[batch or 1, token]``: no token sees across the border before it.

    Args:
        mask: ``[batch or 1, heads or 1, token, past + token]``; bool, true at visible pairs, or added to scores.
        past: number of tokens before these.
    """
    seen = (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min).any(1)
    keys, sees = seen.shape[-1], seen.any(-1)
    index = torch.arange(past, keys, device=seen.device)
    first = torch.where(sees, seen.byte().argmax(-1), keys)
    last = torch.where(sees, keys - 1 - seen.flip(-1).byte().argmax(-1), -1)
    earliest = first.flip(-1).cummin(-1).values.flip(-1)  # key that this or a later token sees
    latest = pad(last.cummax(-1).values[:, :-1], (1, 0), value=-1)  # key that an earlier token sees
    return (earliest >= index) & (latest < index) | (index == 0)


def check_text_keyword(name: str, value: Any, starts: Tensor | None, tokens: Tensor) -> None:
    """Refuse a keyword that contradicts the texts of the positions or the mask.

    ``cu_seq_lens`` of a single text are not read on a GPU, because reading would wait for the device.

    Raises:
        InvalidInput: the keyword is no tensor of whole numbers.
        MaskMismatch: the texts differ.
    """
    if not isinstance(value, Tensor) or value.is_floating_point():
        raise InvalidInput(f"{name} must be whole numbers in a tensor, got {shown(value)}. Pass torch.tensor(…).")
    batch, length = tokens.shape[:2]
    if name == TEXT_OF_TOKEN:
        count = 1 + int(value.diff(dim=-1).ne(0).sum(-1).max())
        valid = value.shape[-1] == length
        keyword_starts = pad(value.diff(dim=-1) != 0, (1, 0), value=True)
    else:
        count = value.numel() - 1
        if count == batch == 1 and starts is None and value.device.type != "cpu":
            return
        valid = value.ndim == 1 and count > 0 and int(value[0]) == 0 and int(value[-1]) == batch * length
        valid = valid and bool((value.diff() > 0).all())
        keyword_starts = torch.zeros(batch * length, dtype=torch.bool, device=value.device)
        if valid:
            keyword_starts = keyword_starts.index_fill_(0, value[:-1].long(), True).view(batch, length)
    if starts is None:
        starts = (torch.arange(length) == 0)[None]
    if not valid or not bool((keyword_starts == starts.to(keyword_starts.device)).all()):
        raise MaskMismatch(
            f"{name} packs {count} texts into one row, which position_ids and the attention mask contradict. "
            "Pass position_ids that start again at every text, use_cache=False, and no attention_mask."
        )


def check_max_lengths(keywords: Mapping[str, Any]) -> None:
    """Refuse ``max_length_q`` and ``max_length_k`` shorter than a text: kernels would not read past them."""
    for borders, name in zip(CU_SEQ_LENS, MAX_LENGTHS, strict=True):
        if keywords.get(borders) is None or keywords.get(name) is None:
            continue
        longest = int(keywords[borders].diff().max())
        if int(keywords[name]) < longest:
            raise InvalidInput(
                f"{name} is {int(keywords[name])}, but a text has {longest} tokens. Pass {name}={longest}."
            )


def separate_texts(
    mask: Any, texts: Tensor, ctx: PositionContext, backend: str, host: dict[str, Any], batch: int
) -> Any:
    """Mask that separates the texts of each row, made once for all layers with the same mask.

    Args:
        mask: mask of the layer, ``[batch or 1, heads or 1, token, token]`` or a `BlockMask`; None if causality alone
            hides keys.
        texts: number of each token's text, ``[batch or 1, token]``.
        ctx: positions of the call.
        backend: name of the attention implementation.
        host: the layer's other keywords, by which FlashAttention separates texts.
        batch: number of rows.

    Raises:
        BackendCannotCarry: the backend accepts no such mask, and does not separate the texts itself.
    """
    if "flash" in backend and batch == 1:
        keywords = (*CU_SEQ_LENS, *MAX_LENGTHS)
        are_separate = host.get("position_ids") is not None or all(host.get(name) is not None for name in keywords)
    else:
        are_separate = isinstance(mask, BlockMask) and not bool(
            (sees_previous(mask, batch, texts.shape[1])[:, 1:] & (texts.diff(dim=-1) != 0)).any()
        )
    if are_separate:
        return mask
    if "flash" in backend or isinstance(mask, BlockMask):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} does not separate the texts that are packed into the rows of this "
            'call. Use model.set_attn_implementation("sdpa") or "eager".'
        )
    identity = None if mask is None else id(mask)  # torch before 2.13 cannot compile the id of None
    return ctx.once(("separated", identity), lambda: (_within_texts(mask, texts.to(ctx.device)), mask))[0]


def _within_texts(mask: Tensor | None, texts: Tensor) -> Tensor:
    """The mask without pairs of different texts; None stands for a causal mask."""
    same_text = texts[:, None, :, None] == texts[:, None, None, :]
    if mask is None:
        return same_text.tril()
    return mask & same_text if mask.dtype == torch.bool else mask.masked_fill(~same_text, torch.finfo(mask.dtype).min)
