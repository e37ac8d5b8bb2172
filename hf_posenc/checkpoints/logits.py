"""What a model computes of a text of random tokens: by it, two forms of a model are compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_posenc.patching.offloading import computing_device, offloads_of


def random_text(model: Any, length: int, seed: int = 0) -> Tensor:
    """A text ``[1, token]`` of random tokens, always the same."""
    tokens = model.config.get_text_config().vocab_size
    return torch.randint(0, tokens, (1, length), generator=torch.Generator().manual_seed(seed))


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """What a model computes of a text: logits, or hidden states where it has no head."""
    ids = ids.to(computing_device(model, offloads_of(model)))
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **more)[0]
