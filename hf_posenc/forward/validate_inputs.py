"""Check token ids, embeddings and positions of a call of a base model before a kernel meets them.

Shapes and dtypes are always checked. Values are checked on CPU only: on a GPU each check would wait for the device, and
a compiler's trace has no values.

A model passes keywords that it does not name on to its attention functions. Some of these read a keyword, others ignore
it. So every keyword is honoured or refused, in the same way for all schemes:

    honoured    parameters of the base model's own forward; packed texts (`hf_posenc.forward.texts_in_rows`)
    harmless    no effect on attention: outputs to return, labels of a loss, outputs of processors (`HARMLESS`)
    refused     every other keyword with a value: ``softcap``, ``s_aux``, ``sliding_window``, ``block_mask`` …

A registered attention function of the user may read any keyword. It runs under schemes that only rotate or scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.core.tracing import is_either, is_traced
from hf_posenc.errors import InvalidInput, UnknownKeyword, shown
from hf_posenc.forward.host_calls import forward_parameters
from hf_posenc.forward.text_borders import CU_SEQ_LENS, MAX_LENGTHS, TEXT_OF_TOKEN
from hf_posenc.schemes.base import Scheme

ID_TYPES = (torch.int64, torch.int32)  # what `torch.nn.functional.embedding` takes


def values_known(x: Tensor) -> bool:
    """Whether the values of ``x`` can be read without waiting for a device."""
    return x.device.type == "cpu" and x.numel() > 0 and not is_traced()


def tokens_of_call(module: nn.Module, ids: Any, embeddings: Any, *, flattens: bool) -> Tensor:
    """Token ids ``[batch, query]`` or embeddings ``[batch, query, width]`` of a call, whichever was passed.

    Raises:
        InvalidInput: neither or both were passed, the shape or dtype is wrong, or an id is outside the vocabulary.
    """
    if (ids is None) == (embeddings is None):
        raise InvalidInput(
            f"The call has {'neither' if ids is None else 'both'} input_ids and inputs_embeds. Pass one of the two."
        )
    if ids is None:
        check_tensor("inputs_embeds", embeddings)
        _check_axes("inputs_embeds", embeddings, ("batch", "tokens", "width"))
        if not embeddings.is_floating_point():
            kind = dtype_name(embeddings.dtype)
            raise InvalidInput(f"inputs_embeds are {kind} values. Pass token numbers as input_ids.")
        return embeddings
    check_tensor("input_ids", ids)
    if flattens and ids.ndim > 2:  # several texts a row, as for multiple choice
        ids = ids.flatten(0, -2)
    _check_axes("input_ids", ids, ("batch", "tokens"))
    table = module.get_input_embeddings()
    table = table._modules.get("base_layer", table)  # PEFT wraps the model's own embedding
    _check_ids(ids, getattr(table, "num_embeddings", None))
    return ids


def _check_axes(name: str, tokens: Tensor, axes: tuple[str, ...]) -> None:
    if tokens.ndim != len(axes):
        raise InvalidInput(f"{name} have the shape {tuple(tokens.shape)}. Pass [{', '.join(axes)}].")
    if tokens.shape[0] == 0 or tokens.shape[1] == 0:
        raise InvalidInput(f"The input has no tokens, its shape is {tuple(tokens.shape)}. Pass at least one.")


def _check_ids(ids: Tensor, vocabulary: int | None) -> None:
    if ids.dtype not in ID_TYPES:
        raise InvalidInput(f"input_ids are {dtype_name(ids.dtype)} values, not token numbers. Pass input_ids.long().")
    if vocabulary is None or not values_known(ids):
        return
    low, high = (int(ids),) * 2 if ids.numel() == 1 else (int(end) for end in ids.aminmax())
    if low < 0 or high >= vocabulary:
        raise InvalidInput(
            f"Token {low if low < 0 else high} is outside the vocabulary of this model, 0 … {vocabulary - 1}. "
            "Use the tokenizer of this model."
        )


def check_position_ids(positions: Any, tokens: Tensor) -> None:
    """Check a caller's positions ``[batch or 1, query]``, or coordinates ``[axes, batch or 1, query]``.

    Positions may have any order: causality follows the order of the tokens, and distances may be negative.

    Raises:
        InvalidInput: there is not one position for each token, or positions are not whole numbers.
    """
    if positions is None:
        return
    check_tensor("position_ids", positions)
    batch, length = tokens.shape[:2]
    if positions.ndim not in (2, 3) or positions.shape[-1] != length or not is_either(positions.shape[-2], 1, batch):
        raise InvalidInput(
            f"position_ids have the shape {tuple(positions.shape)}, and there are {batch} rows of {length} tokens. "
            "Pass one for each token, [batch or 1, tokens]."
        )
    if positions.dtype is torch.bool:
        raise InvalidInput("position_ids are booleans. Pass whole numbers, or pass this tensor as attention_mask.")
    # Coordinates of several axes may be fractional.
    if positions.is_complex() or (positions.is_floating_point() and positions.ndim == 2):
        raise InvalidInput(
            f"position_ids are {dtype_name(positions.dtype)} numbers, and tokens stand at whole positions. "
            "Pass position_ids.long()."
        )


def check_range(positions: Tensor) -> None:
    """Check the range of positions from 0, ``[batch or 1, query]``; negative ones of padding are 0 already.

    Raises:
        InvalidInput: a position lies outside 0 … 2³¹ − 1.
    """
    if not values_known(positions):
        return
    low, high = (int(end) for end in positions.aminmax())
    if low < 0:
        raise InvalidInput(f"Position {low} is before the start of the text. Count from 0.")
    if high > MAX_LENGTH:
        raise InvalidInput(f"Position {high} is beyond {MAX_LENGTH}, where angles lose precision. Count from 0.")


def check_tensor(name: str, value: Any) -> None:
    """Refuse an argument that is no tensor; raises `InvalidInput`."""
    if not isinstance(value, Tensor):
        raise InvalidInput(f"{name} must be a torch.Tensor, got {shown(value)}. Pass torch.tensor(…).")


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype without its module: ``"float16"``."""
    return str(dtype).removeprefix("torch.")


# Keywords that never change attention.
HARMLESS = frozenset((
    "position_ids", "cache_position", "use_cache",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
    "labels", "shift_labels", "num_items_in_batch", "ignore_index",
    "skip_logits", "return_token_accuracy", "use_token_scaling",
    "token_type_ids", "special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length",
    "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "video_second_per_grid", "second_per_grid_ts",
    "token_embeddings", "sentence_embedding", "all_layer_embeddings",  # outputs of sentence-transformers
    "pixel_values", "pixel_values_videos", "image_sizes", "input_features", "feature_attention_mask",
))  # fmt: skip
PACKED_TEXT_KEYWORDS = frozenset((*CU_SEQ_LENS, *MAX_LENGTHS, TEXT_OF_TOKEN))
BUILT_IN_BACKENDS = ("eager", "sdpa", "flex_attention")  # transformers' own, besides FlashAttention
_PARAMETERS: dict[type, frozenset[str]] = {}


def forward_parameter_names(cls: type) -> frozenset[str]:
    """Names of the parameters of a base model's forward, and of the forwards that it overrides."""
    if cls not in _PARAMETERS:
        # Not by `vars`: torch.compile may trace the first call, and cannot read the dictionary of a class.
        models = [base for base in cls.__mro__ if hasattr(base, "forward") and base is not nn.Module]
        _PARAMETERS[cls] = frozenset(name for model in models for name in forward_parameters(model))
    return _PARAMETERS[cls]


def check_call(module: nn.Module, call: Mapping[str, Any], scheme: Scheme, *, causal: bool) -> None:
    """Refuse keywords of a base model that may change attention and are not honoured.

    Args:
        module: the base model.
        call: all keywords of the call.
        scheme: the model's scheme, for the message.
        causal: whether the model is a decoder.

    Raises:
        UnknownKeyword: a keyword is not known to be harmless.
    """
    honoured = forward_parameter_names(type(module))
    if call.keys() <= honoured:  # true for most decoding steps
        return
    config: Any = module.config
    backend = (config._attn_implementation or "eager").removeprefix("paged|")
    if backend in BUILT_IN_BACKENDS or "flash" in backend:
        check_keywords(call, scheme, causal=causal, honoured=honoured)


def check_keywords(
    call: Mapping[str, Any], scheme: Scheme, *, causal: bool, honoured: Collection[str], window: int | None = None
) -> None:
    """Refuse keywords that would change attention and are not honoured.

    Args:
        call: keywords of a base model, or the keywords that an attention module does not name itself.
        scheme: named in the message.
        causal: whether the model is a decoder.
        honoured: names of supported keywords.
        window: largest number of keys that a query of the layer sees; the mask or the visible band applies it as well.

    Raises:
        UnknownKeyword: a keyword is not known to be harmless.
    """
    for name, value in call.items():
        if value is None or name in HARMLESS or name in PACKED_TEXT_KEYWORDS or name in honoured:
            continue
        if (name == "is_causal" and bool(value) == causal) or (name == "sliding_window" and value == window):
            continue
        refuse_keyword(name, value, scheme)


def refuse_keyword(name: str, value: Any, scheme: Scheme) -> None:
    """Raise `UnknownKeyword` for a keyword that is not honoured."""
    raise UnknownKeyword(
        f"Attention is called with {name}={shown(value)}, which scheme {scheme.shown_name!r} ignores, like "
        "every other scheme. Leave it out; the model's configuration may have an option for it."
    )
