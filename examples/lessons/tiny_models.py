"""Small models with random weights, and sentences for them; the lessons hold for any weights."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.forward import forward
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import SchemeNotDefined
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import base_model_of

SAME = 1e-4  # of outputs of order one: below it is rounding
FIRST_WORD = 3  # the ids before are special tokens


def patched(model: str, scheme: str) -> PreTrainedModel:
    """Build a small model with a scheme; learned parameters are random.

    Args:
        model: ``llama``, ``gpt2`` or ``bert``.
        scheme: as `hf_posenc.patch_model` takes it.

    Raises:
        PosEncError: there is no such scheme, or it is not defined for this model.
    """
    found = patch_model(tiny_model(model), scheme)
    perturb_parameters(found)
    return found


def patched_if_defined(model: str, scheme: str) -> PreTrainedModel | None:
    """Build the model, or return None where the scheme is not defined for this model."""
    try:
        return patched(model, scheme)
    except SchemeNotDefined:
        return None


def tokens(words: str) -> Tensor:
    """Token ids ``[1, n]`` of a sentence; equal words have equal ids."""
    numbers: dict[str, int] = {}
    return torch.tensor([[numbers.setdefault(word.lower(), FIRST_WORD + len(numbers)) for word in words.split()]])


def hidden(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Final hidden state of every token, ``[n, width]``."""
    return forward(base_model_of(model)[0], ids)[0]


def apart(one: Tensor, two: Tensor) -> float:
    """Largest difference of two vectors, or of two sets of them."""
    return float((one - two).abs().max())


def named(words: list[str]) -> str:
    """``"a, b and c"``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
