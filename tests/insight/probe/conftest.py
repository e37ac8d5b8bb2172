"""Small random models with sharp attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

LENGTH, VOCABULARY = 48, 64
Build = Callable[..., Any]


def small(kind: str, **more: Any) -> Any:
    """Two layers of four heads, with weights so large that scores differ by several units."""
    torch.manual_seed(0)
    if kind == "llama":
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH, **more,
        )  # fmt: skip
        model: Any = LlamaForCausalLM(config)
    elif kind == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH, **more)
        )
    else:
        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=LENGTH, **more,
        )  # fmt: skip
        model = BertForMaskedLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def build() -> Build:
    return small


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))
