"""Models with random weights for benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_posenc.core.torch_state import drawn_from
from hf_posenc.errors import OptionOutOfRange

VOCABULARY = 1024  # small, so that the head does not hide the layers
SEED = 0


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
    with drawn_from(SEED):
        return KINDS[kind](layers, hidden, heads, kv_heads, trained_length).to(dtype).eval()


def llama(layers: int, hidden: int, heads: int, kv_heads: int, trained_length: int) -> PreTrainedModel:
    """A decoder with RoPE (Llama)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
            intermediate_size=8 * hidden // 3, vocab_size=VOCABULARY, max_position_embeddings=trained_length,
        )
    )  # fmt: skip


def gpt2(layers: int, hidden: int, heads: int, kv_heads: int, trained_length: int) -> PreTrainedModel:
    """A decoder with a position table (GPT-2)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers, n_embd=hidden, n_head=heads, vocab_size=VOCABULARY, n_positions=trained_length,
            bos_token_id=0, eos_token_id=0, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )
    )  # fmt: skip


def bert(layers: int, hidden: int, heads: int, kv_heads: int, trained_length: int) -> PreTrainedModel:
    """An encoder with a position table (BERT)."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden,
            vocab_size=VOCABULARY, max_position_embeddings=trained_length,
            attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
        )
    )  # fmt: skip


KINDS = {"llama": llama, "gpt2": gpt2, "bert": bert}
