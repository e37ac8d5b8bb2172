"""Whether a model's weights are numbers at all, asked of the weights and not of what they compute.

PyTorch's attention on CPU turns queries and keys that are not numbers into zeros where a text is short (torch issue
141128): logits then look healthy. One pass over the parameters finds them, at the speed of reading memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from hf_posenc.errors import InvalidInput, UnsupportedModel, WeightsNotFinite

MAX_UNKNOWN_SHARE = 0.5  # of the tokens of a text


def check_finite(model: nn.Module) -> None:
    """Refuse a model one of whose parameters holds NaN or infinity; what is packed or on the meta device is passed by.

    Raises:
        WeightsNotFinite: one does.
    """
    for name, weight in model.named_parameters():
        if not weight.is_floating_point() or weight.dtype.itemsize < 2 or weight.is_meta or weight.numel() == 0:
            continue
        low, high = (float(end) for end in weight.detach().aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise WeightsNotFinite(
                f"The weight {name!r} holds values that are not finite numbers, so that this model computes nothing. "
                "Load or train it again."
            )


def check_floating(model: nn.Module) -> None:
    """Refuse integers as the weights of plain layers: no kernel multiplies them with anything.

    Layers of a quantiser are of classes of their own, or the model says that it is quantised.

    Raises:
        UnsupportedModel: a layer of torch has some.
    """
    if any(getattr(module, "is_quantized", False) for module in model.modules()):
        return
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None) if type(module) in (nn.Linear, nn.Embedding) else None
        if type(weight) is nn.Parameter and not weight.is_floating_point():
            raise UnsupportedModel(
                f"The weight of {name!r} holds {weight.dtype} numbers, and this {type(module).__name__} computes with "
                "floating ones. Load the model with a quantization_config, or in a floating dtype."
            )


def check_vocabulary(model: nn.Module, highest: int) -> None:
    """Refuse a token that the model has no row for, which PyTorch meets as an index out of range, or on CUDA as less.

    Raises:
        InvalidInput: ``highest`` is one.
    """
    rows = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if highest >= rows:
        raise InvalidInput(
            f"The tokenizer gives token {highest}, and the model has {rows} embeddings. "
            "Use the model's own tokenizer, or call resize_token_embeddings first."
        )


def check_known(tokenizer: Any, ids: Sequence[int]) -> None:
    """Refuse a text most of which a tokenizer reads as its unknown token: what is learned or measured is nothing.

    Raises:
        InvalidInput: it is.
    """
    unknown = list(ids).count(tokenizer.unk_token_id) / max(1, len(ids))
    if unknown > MAX_UNKNOWN_SHARE:
        raise InvalidInput(
            f"The tokenizer reads {unknown:.0%} of the text as {tokenizer.unk_token!r}, its unknown token. "
            "Use the model's own tokenizer, or a text in the language it was made for."
        )
