"""A tiny GPT-NeoX with uneven attention, as in `hf_posenc.checks.tiny_models`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from hf_posenc.checks.tiny_models import SCORE_DEVIATION, TRAINED_LENGTH

WIDTH, HEADS = 128, 4
UNIT = ("dense.weight", "embed_in.weight", "embed_out.weight", "lm_head.weight")


def tiny_neox(partial: float = 0.5, **settings: Any) -> GPTNeoXForCausalLM:
    """A model in evaluation mode that rotates half of the 32 channels of each head."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": partial}
    shape: dict[str, Any] = {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 2 * WIDTH,
        "vocab_size": 96, "max_position_embeddings": TRAINED_LENGTH, "rope_parameters": rope,
    }  # fmt: skip
    config = GPTNeoXConfig(**(shape | settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPTNeoXForCausalLM(config).eval()
        for name, weight in model.named_parameters():
            if name.endswith("query_key_value.weight"):
                parts = weight.data.unflatten(0, (HEADS, 3, -1)).unbind(1)
                for part, deviation in zip(parts, (SCORE_DEVIATION, SCORE_DEVIATION, 1.0), strict=True):
                    nn.init.normal_(part, std=math.sqrt(deviation / WIDTH))
            elif name.endswith(UNIT):
                nn.init.normal_(weight, std=WIDTH**-0.5)
    return model
