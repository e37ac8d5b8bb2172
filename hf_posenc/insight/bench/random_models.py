"""Models with random weights for benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from hf_posenc.core.torch_state import drawn_from
from hf_posenc.errors import OptionOutOfRange

VOCABULARY = 1024  # small, so that the head does not hide the layers
SEED = 0
DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_probs_dropout_prob", "hidden_dropout_prob")
KINDS = ("llama", "gpt2", "bert")


def random_model(shape: tuple[int, int, int, int], kind: str, trained_length: int, dtype: torch.dtype) -> Any:
    """Build a model with random weights.

    Args:
        shape: layers, hidden size, heads, key-value heads.
        kind: ``llama``, ``gpt2`` or ``bert``.
        trained_length: positions of its configuration.
        dtype: of the weights.

    Raises:
        OptionOutOfRange: the numbers do not fit together.
    """
    layers, hidden, heads, kv_heads = shape
    if hidden % heads or (hidden // heads) % 2:
        raise OptionOutOfRange(
            f"shape has {hidden} channels for {heads} heads, no even number each. Choose for example 4,256,4,2."
        )
    if heads % kv_heads or (kind != "llama" and kv_heads != heads):
        raise OptionOutOfRange(
            f"shape has {heads} heads and {kv_heads} key-value heads, which a {kind} cannot have. Choose for example "
            f"{layers},{hidden},{heads},{heads}."
        )
    config = AutoConfig.for_model(
        kind, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=8 * hidden // 3 if kind == "llama" else 4 * hidden, vocab_size=VOCABULARY,
        max_position_embeddings=trained_length, bos_token_id=0, eos_token_id=0, **dict.fromkeys(DROPOUTS, 0.0),
    )  # fmt: skip
    cls: Any = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    with drawn_from(SEED):
        return cls.from_config(config).to(dtype).eval()
