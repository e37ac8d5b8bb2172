"""Tiny BLOOM, MPT and Falcon models on which a broken check shows, as in `hf_posenc.checks.tiny_models`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
)

from hf_posenc.checks.tiny_models import TRAINED_LENGTH

WIDTH, HEADS, VOCABULARY = 64, 4, 96
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}

VARIANTS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "mpt": {"max_seq_len": 4 * TRAINED_LENGTH, "use_cache": True},
    "falcon multi-query": {},
    "falcon multi-head": {"multi_query": False, "parallel_attn": False, "bias": True},
    "falcon grouped": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon alibi": {"alibi": True, "multi_query": False},
}
"""Name to the settings of a configuration; the first word is the family."""


def tiny_inline(variant: str, *, heads: int = HEADS, layers: int = 2, **settings: Any) -> PreTrainedModel:
    """A model of `VARIANTS` in evaluation mode, whose scores tell positions apart."""
    width, own = WIDTH // HEADS * heads, VARIANTS[variant] | settings
    family = variant.partition(" ")[0]
    model: PreTrainedModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "bloom":
            config = BloomConfig(
                hidden_size=width, n_head=heads, n_layer=layers, seq_length=TRAINED_LENGTH, **SPECIAL, **own
            )
            model = BloomForCausalLM(config)
        elif family == "mpt":
            model = MptForCausalLM(MptConfig(d_model=width, n_heads=heads, n_layers=layers, **SPECIAL, **own))
        else:
            backend = own.pop("attn_implementation", None)
            model = FalconForCausalLM._from_config(
                FalconConfig(
                    hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers,
                    max_position_embeddings=TRAINED_LENGTH, **SPECIAL, **own,
                ),
                attn_implementation=backend,
            )  # fmt: skip
        for weight in model.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=1.5 / math.sqrt(weight.shape[1]))
    return model.eval()


def ids(length: int = 2 * TRAINED_LENGTH, rows: int = 2) -> Tensor:
    """Random ids without those of special tokens."""
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def logits(model: nn.Module, tokens: Tensor, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tokens, **call).logits
