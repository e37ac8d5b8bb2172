"""Keywords of an attention call that the engine must heed, may ignore, or does not know.

A model hands every keyword it does not name down to its attention modules. The host's own attention functions get them
all; the engine reads none of them, so that one which changes the attention mask would be ignored silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import MaskMismatch, UnknownKeyword, shown

# Nothing of attention depends on their values: what to return, what to compute a loss of, what a tokenizer adds.
HARMLESS = frozenset(
    (
        *("position_ids", "cache_position", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
        *("labels", "shift_labels", "num_items_in_batch", "ignore_index", "skip_logits"),
        *("token_type_ids", "special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"),
        *("max_length_q", "max_length_k"),  # said by the borders, too
    )
)
BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k")  # of texts packed into one row
TEXT_OF_TOKEN = "seq_idx"


def check_keywords(
    call: Mapping[str, Any],
    mask: Any,
    ctx: PositionContext,
    scheme: str,
    *,
    heeded: frozenset[str] = frozenset(),
    window: int | None = None,
) -> None:
    """Refuse keywords that would change what the engine computes, and that it does not read.

    Args:
        call: the keywords an attention module does not name itself.
        mask: as transformers made it for the backend in use.
        ctx: of the call.
        scheme: its name.
        heeded: keywords of the model itself that the engine takes into account.
        window: keys that a query of the layer sees at most, which the mask or the visible band says as well.

    Raises:
        MaskMismatch: texts are packed into one row, and nothing keeps them apart.
        UnknownKeyword: a keyword is not known to be harmless.
    """
    for name, value in call.items():
        if value is None or name in HARMLESS or name in heeded:
            continue
        if (name == "is_causal" and bool(value) == ctx.causal) or (name == "sliding_window" and value == window):
            continue
        if name in BORDERS and isinstance(value, Tensor):
            check_borders(name, value, mask, ctx)
        elif name != TEXT_OF_TOKEN or mask is None:
            raise UnknownKeyword(
                f"Attention is called with {name}={shown(value)}, which scheme {scheme!r} does not take into account. "
                "Leave it out, or patch the model with a scheme that only rotates, such as 'yarn'."
            )


def check_borders(name: str, borders: Tensor, mask: Any, ctx: PositionContext) -> None:
    """Refuse cumulative lengths of packed texts where the mask does not say the same.

    Args:
        name: of the keyword.
        borders: ``[texts + 1]``, from 0 on.
        mask: as transformers made it for the backend in use.
        ctx: of the call.

    Raises:
        MaskMismatch: there are several texts, and tokens of one see another's.
    """
    if borders.numel() <= 2:  # one text
        return
    apart = mask is not None
    if isinstance(mask, Tensor) and mask.device.type == "cpu" and not is_traced():
        apart = ctx.once((name, id(mask)), lambda: (mask, _apart(mask, borders[1:-1].long())))[1]  # keeps the number
    if not apart:
        raise MaskMismatch(
            f"{name} packs {borders.numel() - 1} texts into one row, and the attention mask does not keep them apart. "
            "Pass position_ids that start again at every text, and no attention_mask."
        )


def _apart(mask: Tensor, starts: Tensor) -> bool:
    """Whether the first token of each text is kept from the last one before it by ``mask [batch, 1, query, key]``."""
    if mask.ndim != 4 or mask.shape[2] <= int(starts.max()):
        return False
    seen = mask[:, :, starts, starts - 1]
    return not bool((seen if seen.dtype == torch.bool else seen > torch.finfo(seen.dtype).min).any())
