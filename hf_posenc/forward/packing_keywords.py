"""Keywords that say which tokens of a row are one text: ``cu_seq_lens_q``, ``seq_idx`` and the lengths beside them.

They must say what ``position_ids`` or a mask say, by which texts are kept apart (`hf_posenc.forward.texts_in_rows`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posenc.errors import InvalidInput, MaskMismatch, shown

BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k")
LONGEST = ("max_length_q", "max_length_k")
TEXT_OF_TOKEN = "seq_idx"


def check_said(name: str, value: Any, starts: Tensor | None, tokens: Tensor) -> None:
    """Refuse a keyword that says other texts than positions or mask do; on a GPU one text is believed.

    Raises:
        MaskMismatch: it does.
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


def check_longest(kwargs: dict[str, Any]) -> None:
    """Refuse lengths that are shorter than a text, past which kernels would not read."""
    for borders, name in zip(BORDERS, LONGEST, strict=True):
        if kwargs.get(borders) is None or kwargs.get(name) is None:
            continue
        longest = int(kwargs[borders].diff().max())
        if int(kwargs[name]) < longest:
            raise InvalidInput(
                f"{name} is {int(kwargs[name])}, and a text has {longest} tokens. Pass {name}={longest}."
            )
