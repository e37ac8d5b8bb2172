"""Small models on which a broken check shows.

A freshly initialised transformer attends almost evenly: even frequencies that go stale in the cache move its logits by
a thousandth only. Here weights are scaled so that attention scores have a standard deviation of about 3 and logits of
about 1, which is what trained models have.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

TRAINED_LENGTH = 32
WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 64, 4, 2, 2, 96
SCORE_DEVIATION = 3.0
SHARP = ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight")
FUSED = ".attn.c_attn.weight"  # query, key and value side by side
UNIT = (
    *("embed_tokens.weight", "v_proj.weight", "o_proj.weight", "lm_head.weight"),
    *("wte.weight", "wpe.weight", "attn.c_proj.weight"),
    *("word_embeddings.weight", "position_embeddings.weight", "value.weight", "attention.output.dense.weight"),
)


def tiny_model(name: str) -> PreTrainedModel:
    """A fresh copy of a contract model, in evaluation mode: ``llama``, ``gpt2``, ``bert`` or ``bert_decoder``."""
    return copy.deepcopy(_original(name))


def llama() -> LlamaForCausalLM:
    """A Llama whose keys and values are shared by two query heads each."""
    config = LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, num_hidden_layers=LAYERS,
        intermediate_size=2 * WIDTH, vocab_size=VOCABULARY, max_position_embeddings=TRAINED_LENGTH,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> GPT2LMHeadModel:
    """A GPT-2 with tied embeddings."""
    config = GPT2Config(
        n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, n_positions=TRAINED_LENGTH, vocab_size=VOCABULARY,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def bert() -> BertForMaskedLM:
    """A BERT encoder."""
    return BertForMaskedLM(_bert_config(is_decoder=False))


def bert_decoder() -> BertLMHeadModel:
    """A BERT that reads from left to right and has a cache."""
    return BertLMHeadModel(_bert_config(is_decoder=True))


TINY_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "bert_decoder": bert_decoder,
}


def sharpen(model: nn.Module) -> None:
    """Draw the projections anew: scores of `SCORE_DEVIATION` where inputs have unit variance, everything else of 1."""
    for name, weight in model.named_parameters():
        if name.endswith(FUSED):
            query, key, value = weight.data.split(weight.shape[1] // 3, dim=1)
            for part, deviation in ((query, SCORE_DEVIATION), (key, SCORE_DEVIATION), (value, 1.0)):
                _draw(part, math.sqrt(deviation))
        elif name.endswith(SHARP):
            _draw(weight, math.sqrt(SCORE_DEVIATION))
        elif name.endswith(UNIT):
            _draw(weight, 1.0)


def _draw(weight: Tensor, deviation: float) -> None:
    nn.init.normal_(weight, std=deviation / math.sqrt(WIDTH))


@lru_cache(maxsize=16)
def _original(name: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TINY_MODELS[name]().eval()
        sharpen(model)
        return model


def _bert_config(*, is_decoder: bool) -> BertConfig:
    return BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=LAYERS, intermediate_size=2 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=TRAINED_LENGTH, is_decoder=is_decoder,
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
