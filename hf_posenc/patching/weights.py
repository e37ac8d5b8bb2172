"""Check the values of a model's weights, and the token ids of a text.

PyTorch's attention on CPU turns queries and keys that are not finite into zeros for short sequences (torch issue
141128): logits then look healthy. One pass over the parameters finds them, at the speed of reading memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from hf_posenc.errors import InvalidInput, UnsupportedModel, WeightsNotFinite

MAX_UNKNOWN_SHARE = 0.5  # of the tokens of a text
REARRANGES = "support_avx512bf16_for_cpu"  # attribute of a 4-bit layer of bitsandbytes


def check_finite(model: nn.Module) -> None:
    """Refuse a model with NaN or infinity in a parameter; quantised weights and the meta device are skipped."""
    for name, weight in model.named_parameters():
        if not weight.is_floating_point() or weight.dtype.itemsize < 2 or weight.is_meta or weight.numel() == 0:
            continue
        try:
            low, high = (float(end) for end in weight.detach().aminmax())
        except NotImplementedError:  # tensor class of a quantiser such as torchao, which claims to be floating-point
            continue
        if not (math.isfinite(low) and math.isfinite(high)):
            raise WeightsNotFinite(
                f"The weight {name!r} holds infinite or NaN values, so all outputs of this model are undefined. "
                "Load or train it again."
            )


def keep_arranged(model: nn.Module) -> None:
    """Stop bitsandbytes from rearranging 4-bit weights for a CPU, because its `state_dict` undoes that wrongly.

    Raises:
        UnsupportedModel: weights have been rearranged already.
    """
    for layer in model.modules():
        if not hasattr(layer, REARRANGES):
            continue
        if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
            raise UnsupportedModel(
                f"bitsandbytes has rearranged the 4-bit weights of this {type(model).__name__} for this CPU, and would "
                "save wrong weights. Load the model again, and patch it before the first forward pass."
            )
        setattr(layer, REARRANGES, False)


def check_loaded(model: nn.Module) -> None:
    """Refuse weights that are on the meta device or not finite, because such a model cannot be trained or measured."""
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedModel("Weights of this model are on the meta device. Load it on one device first.")
    check_finite(model)


def check_vocabulary(model: nn.Module, highest: int) -> None:
    """Refuse a token id without an embedding. PyTorch would raise an IndexError, or abort on CUDA."""
    rows = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if highest >= rows:
        raise InvalidInput(
            f"The tokenizer gives token {highest}, and the model has {rows} embeddings. "
            "Use the model's own tokenizer, or call resize_token_embeddings first."
        )


def check_known(tokenizer: Any, ids: Sequence[int]) -> None:
    """Refuse a text that consists mostly of unknown tokens, because it is useless for training and evaluation."""
    check_unknown_share(tokenizer, list(ids).count(tokenizer.unk_token_id), len(ids))


def check_unknown_share(tokenizer: Any, unknown: int, tokens: int) -> None:
    """Refuse a text if more than half of its ``tokens`` are unknown; ``unknown`` is their number."""
    share = unknown / max(1, tokens)
    if share > MAX_UNKNOWN_SHARE:
        raise InvalidInput(
            f"The tokenizer reads {share:.0%} of the text as {tokenizer.unk_token!r}, its unknown token. "
            "Use the model's own tokenizer, or a text in the language it was made for."
        )
