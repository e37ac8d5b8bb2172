"""Logits of a text of random tokens, to compare two forms of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_posenc.patching.offloading import computing_device, offloads_of

TOKENS = 512


def random_text(model: Any, length: int | None = None, seed: int = 0, rows: int = 1) -> Tensor:
    """Texts ``[row, token]`` of random tokens, fixed by ``seed``. By default `TOKENS` long, or the model's maximum."""
    config = model.config.get_text_config()
    length = length or min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
    return torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Logits of a text, or hidden states if the model has no head."""
    ids = ids.to(computing_device(model, offloads_of(model)))
    decoder_input = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **decoder_input)[0]
