"""Tiny models with uneven attention, so errors of positions change their outputs.

A freshly initialised transformer attends almost uniformly: even wrong rotation frequencies in the cache move its logits
by only a thousandth. Here weights are scaled: attention scores have a standard deviation of about 3, and logits of
about 1, as in trained models.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache

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

from hf_posenc.core.torch_state import fixed_seed

TRAINED_LENGTH = 32
WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 64, 4, 2, 2, 96
SCORE_DEVIATION = 3.0
QUERY_KEY_WEIGHTS = ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight")
FUSED_QKV_WEIGHT = ".attn.c_attn.weight"  # query, key and value in one matrix
UNIT_VARIANCE_WEIGHTS = (
    *("embed_tokens.weight", "v_proj.weight", "o_proj.weight", "lm_head.weight"),
    *("wte.weight", "wpe.weight", "attn.c_proj.weight"),
    *("word_embeddings.weight", "position_embeddings.weight", "value.weight", "attention.output.dense.weight"),
)


def tiny_model(name: str) -> PreTrainedModel:
    """A new copy of a tiny model in evaluation mode: ``llama``, ``gpt2``, ``bert`` or ``bert_decoder``."""
    return copy.deepcopy(tiny_template(name))


def llama() -> LlamaForCausalLM:
    """A Llama with grouped-query attention, two query heads to a key head."""
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
    """A causal BERT decoder with a KV cache."""
    return BertLMHeadModel(_bert_config(is_decoder=True))


TINY_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "bert_decoder": bert_decoder,
}


def sharpen_attention(model: nn.Module) -> None:
    """Redraw the weights so that attention scores have a standard deviation of `SCORE_DEVIATION`, the rest of 1."""
    for name, weight in model.named_parameters():
        if name.endswith(FUSED_QKV_WEIGHT):
            query, key, value = weight.data.split(weight.shape[1] // 3, dim=1)
            for part, deviation in ((query, SCORE_DEVIATION), (key, SCORE_DEVIATION), (value, 1.0)):
                _draw(part, math.sqrt(deviation))
        elif name.endswith(QUERY_KEY_WEIGHTS):
            _draw(weight, math.sqrt(SCORE_DEVIATION))
        elif name.endswith(UNIT_VARIANCE_WEIGHTS):
            _draw(weight, 1.0)


def _draw(weight: Tensor, deviation: float) -> None:
    nn.init.normal_(weight, std=deviation / math.sqrt(WIDTH))


@lru_cache(maxsize=16)
def tiny_template(name: str) -> PreTrainedModel:
    """The shared tiny model that `tiny_model` copies; read it, but do not change it."""
    with fixed_seed(0):
        model = TINY_MODELS[name]().eval()
        sharpen_attention(model)
        return model


def _bert_config(*, is_decoder: bool) -> BertConfig:
    return BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=LAYERS, intermediate_size=2 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=TRAINED_LENGTH, is_decoder=is_decoder,
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
