"""Keywords of a call, checked where it enters the base model: for every scheme alike, each is honoured or refused.

    honoured    what the base model's own forward names; texts in a row (`hf_posenc.forward.texts_in_rows`)
    no effect   on attention: what to return, what to compute a loss of, what processors add (`HARMLESS`)
    refused     every other one that has a value: ``softcap``, ``s_aux``, ``sliding_window``, ``block_mask`` …

A model hands every keyword it does not name down to its attention functions, some of which read it and some of which
do not. An attention function that somebody registered may read any, and runs under schemes that only rotate or scale.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from hf_posenc.errors import UnknownKeyword, shown
from hf_posenc.schemes.base import Scheme

# Nothing of attention depends on their values.
HARMLESS = frozenset(
    (
        *("position_ids", "cache_position", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
        *("labels", "shift_labels", "num_items_in_batch", "ignore_index"),
        *("skip_logits", "return_token_accuracy", "use_token_scaling"),
        *("token_type_ids", "special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"),
        *("mm_token_type_ids", "image_grid_thw", "video_grid_thw", "video_second_per_grid", "second_per_grid_ts"),
        *("pixel_values", "pixel_values_videos", "image_sizes", "input_features", "feature_attention_mask"),
    )
)
TEXTS = frozenset(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"))
BACKENDS = ("eager", "sdpa", "flex_attention")  # of transformers, beside those of FlashAttention
_NAMES: dict[type, frozenset[str]] = {}


def named_keywords(cls: type) -> frozenset[str]:
    """What the forward pass of a base model names, or of a class that it replaces."""
    if cls not in _NAMES:
        forwards = [vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base) and base is not nn.Module]
        _NAMES[cls] = frozenset(name for forward in forwards for name in inspect.signature(forward).parameters)
    return _NAMES[cls]


def check_call(module: nn.Module, call: Mapping[str, Any], scheme: Scheme, *, causal: bool) -> None:
    """Refuse keywords of a call of the base model that may change attention, and that are not honoured.

    Args:
        module: the base model.
        call: all keywords of the call.
        scheme: of the model.
        causal: whether the model is a decoder.

    Raises:
        UnknownKeyword: a keyword is not known to be harmless.
    """
    heeded = named_keywords(type(module))
    if all(value is None or name in heeded for name, value in call.items()):  # a decoding step, most often
        return
    config: Any = module.config
    backend = (config._attn_implementation or "eager").removeprefix("paged|")
    if backend in BACKENDS or "flash" in backend:
        check_keywords(call, scheme, causal=causal, heeded=heeded)


def check_keywords(
    call: Mapping[str, Any], scheme: Scheme, *, causal: bool, heeded: Collection[str], window: int | None = None
) -> None:
    """Refuse keywords that would change what attention computes, and that are not read.

    Args:
        call: keywords of a base model, or those an attention module does not name itself.
        scheme: for the message.
        causal: whether the model is a decoder.
        heeded: names that are taken into account.
        window: keys that a query of the layer sees at most, which the mask or the visible band says as well.

    Raises:
        UnknownKeyword: a keyword is not known to be harmless.
    """
    for name, value in call.items():
        if value is None or name in HARMLESS or name in TEXTS or name in heeded:
            continue
        if (name == "is_causal" and bool(value) == causal) or (name == "sliding_window" and value == window):
            continue
        refuse_keyword(name, value, scheme)


def refuse_keyword(name: str, value: Any, scheme: Scheme) -> None:
    """Raise the error of a keyword that is not honoured.

    Raises:
        UnknownKeyword: always.
    """
    raise UnknownKeyword(
        f"Attention is called with {name}={shown(value)}, which scheme {scheme.extra_repr()!r} does not take into "
        "account, nor any other. Leave it out; what it sets may be an option of the model's configuration."
    )
