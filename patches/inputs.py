"""What no text could have is refused before a kernel meets it.

On a GPU values are left to the kernels: looking at them would mean to wait for the device at every call.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from hf_posenc.errors import InvalidInput, MaskMismatch
from hf_posenc.graphs import traced


def check_tokens(module: nn.Module, ids: Tensor | None, tokens: Tensor | None) -> None:
    """Token ids ``[batch, query]`` or embeddings ``[batch, query, width]`` of a call of a base model.

    Raises:
        InvalidInput: there are none, or an id is not of this model.
    """
    if tokens is not None and tokens.shape[1] == 0:
        raise InvalidInput(f"The input has no tokens, its shape is {tuple(tokens.shape)}. Pass at least one.")
    if ids is None or ids.device.type != "cpu" or ids.numel() == 0 or traced():
        return
    low, high = (int(end) for end in ids.aminmax())
    size: int = module.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if low < 0 or high >= size:
        raise InvalidInput(
            f"Token {low if low < 0 else high} is none of the {size} of this model. Use the tokenizer it came with."
        )


def check_positions(positions: Tensor | None, tokens: Tensor | None) -> None:
    """A caller's positions ``[batch or 1, query]``, or coordinates ``[axes, batch, query]``.

    Raises:
        InvalidInput: they are not one a token, or no whole numbers, or one is negative.
    """
    if positions is None:
        return
    if tokens is not None and (positions.ndim not in (2, 3) or positions.shape[-1] != tokens.shape[1]):
        raise InvalidInput(
            f"position_ids have the shape {tuple(positions.shape)}, and there are {tokens.shape[1]} tokens in a row. "
            "Pass one a token, [batch or 1, tokens]."
        )
    if positions.ndim == 3:  # coordinates may be anything
        return
    if positions.dtype is torch.bool:
        raise InvalidInput("position_ids are truth values. Pass whole numbers, or this as attention_mask.")
    if positions.is_floating_point():
        raise InvalidInput(
            f"position_ids are {str(positions.dtype).removeprefix('torch.')} numbers, and tokens stand at whole "
            "positions. Pass position_ids.long()."
        )
    if positions.device.type == "cpu" and positions.numel() and not traced():
        lowest = int(positions.min())
        if lowest < 0:
            raise InvalidInput(f"Position {lowest} is before the start of the text. Count from 0.")


def check_mask(mask: Tensor, length: int, cache: Cache | None) -> None:
    """The width of a 2-D mask.

    Raises:
        MaskMismatch: it is not as wide as the tokens it should mask.
    """
    past = 0 if cache is None else cache.get_seq_length()
    if isinstance(past, Tensor) or mask.shape[1] == past + length:  # a static cache may be masked in its full width
        return
    raise MaskMismatch(
        f"The attention mask is {mask.shape[1]} wide for {length} tokens after {past} cached ones. "
        f"Pass a mask of width {past + length}."
    )


def check_width(mask: Tensor, length: int, cache: Cache | None) -> None:
    """The width of a caller's own mask ``[batch or 1, heads or 1, query, key]``.

    Raises:
        MaskMismatch: it does not cover every token of the text, or every place of a static cache.
    """
    keys = length
    if cache is not None:  # a static cache has as many keys as places; one that drops keys has seen more than it holds
        past = cache.get_seq_length()
        keys = max(cache.get_mask_sizes(length, 0)[0], length if isinstance(past, Tensor) else past + length)
    if mask.shape[-1] != keys:
        raise MaskMismatch(
            f"The attention mask of shape {tuple(mask.shape)} has {mask.shape[-1]} columns, and there are {keys} keys. "
            "Pass one column for each of them."
        )


def check_rows(padding: Tensor) -> None:
    """Padding ``[batch, key]``, true at real tokens, while values can be looked at.

    Raises:
        InvalidInput: a row has no real token.
    """
    empty = ~padding.any(-1)
    if bool(empty.any()):
        raise InvalidInput(
            f"The attention mask hides all of row {int(empty.nonzero()[0])}. Leave that row out of the batch."
        )
