"""Every head class of every model family: outputs change, run past the trained length, and are restored."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    GPT2DoubleHeadsModel,
    PreTrainedModel,
)
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention

from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TINY_MODELS, TRAINED_LENGTH, sharpen_attention, tiny_model
from hf_posenc.patches.general.attention import InterceptedAttention
from hf_posenc.patches.general.classes import above
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import describe

CLASSES = {
    "llama": "Model ForCausalLM ForSequenceClassification ForQuestionAnswering ForTokenClassification",
    "gpt2": "Model LMHeadModel DoubleHeadsModel ForSequenceClassification ForTokenClassification ForQuestionAnswering",
    "bert": "Model ForMaskedLM ForPreTraining ForNextSentencePrediction ForTokenClassification "
    "ForSequenceClassification ForQuestionAnswering ForMultipleChoice",
    "bert_decoder": "Model LMHeadModel",
}
PREFIX = {"llama": "Llama", "gpt2": "GPT2", "bert": "Bert", "bert_decoder": "Bert"}
HEADS = [(name, PREFIX[name] + head) for name, heads in CLASSES.items() for head in heads.split()]


def with_head(name: str, cls: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = tiny_model(name).config
        config.pad_token_id = 0
        model = getattr(transformers, cls)(config).eval()
        sharpen_attention(model)
        return model


def tensors_of(model: PreTrainedModel, length: int) -> list[Tensor]:
    """All output tensors for a batch of one; multiple-choice heads get one choice."""
    tokens = random_tokens(model, length)
    choices = isinstance(model, (BertForMultipleChoice, GPT2DoubleHeadsModel))
    with torch.no_grad():
        out = model(input_ids=tokens[:, None] if choices else tokens, use_cache=False)
    return [value for value in out.values() if isinstance(value, Tensor)]


@pytest.mark.parametrize(("name", "cls"), HEADS)
def test_head(name: str, cls: str) -> None:
    model = with_head(name, cls)
    before, stock = snapshot(model, random_tokens(model, TRAINED_LENGTH)), tensors_of(model, TRAINED_LENGTH)
    assert patch_model(model, "alibi", factor=4) is model
    assert describe(model).touched
    moved = [
        bool((one - two).abs().max() > 1e-3) for one, two in zip(tensors_of(model, TRAINED_LENGTH), stock, strict=True)
    ]
    assert all(moved), moved
    assert all(value.isfinite().all() for value in tensors_of(model, 4 * TRAINED_LENGTH))
    unpatch_model(model)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")


def encoder_decoder(decoder: str) -> EncoderDecoderModel:
    """A BERT encoder and a decoder with cross-attention."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        right = TINY_MODELS[decoder]().config
        right.add_cross_attention = right.is_decoder = True
        left = BertConfig(**{**tiny_model("bert").config.to_dict(), "is_decoder": False})
        config = EncoderDecoderConfig.from_encoder_decoder_configs(left, right)
        config.decoder_start_token_id = config.pad_token_id = 0
        model = EncoderDecoderModel(config=config).eval()
        sharpen_attention(model)
        return model


@pytest.mark.parametrize("decoder", ["bert_decoder", "gpt2"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_cross_attention_is_not_patched(decoder: str, part: str) -> None:
    model = encoder_decoder(decoder)
    source, target = random_tokens(model.encoder, 20), random_tokens(model.decoder, 12, seed=1)
    call = {"input_ids": source, "decoder_input_ids": target}
    with torch.no_grad():
        before = model(**call, use_cache=False).logits
        patch_model(getattr(model, part), "alibi", factor=2)
        after = model(**call, use_cache=False).logits
        cached, kept = [], None
        for column in target.split(1, dim=1):
            out = model(input_ids=source, decoder_input_ids=column, past_key_values=kept, use_cache=True)
            cached.append(out.logits)
            kept = out.past_key_values
    assert isinstance(kept, EncoderDecoderCache)
    assert (after - before).abs().max() > 1e-2
    assert (torch.cat(cached, dim=1) - after).abs().max() < 1e-4
    types = {type(module) for module in model.modules()}
    patched = above(BertSelfAttention, InterceptedAttention)
    assert (BertCrossAttention in types) == (decoder == "bert_decoder")
    assert (patched in types) == (part == "encoder" or decoder == "bert_decoder")
    if decoder == "gpt2":
        cross_attention = [m for m in model.decoder.modules() if getattr(m, "is_cross_attention", False)]
        assert cross_attention
        assert not any(type(m).__name__.startswith("Patched") for m in cross_attention)
    unpatch_model(getattr(model, part))
    with torch.no_grad():
        assert torch.equal(model(**call, use_cache=False).logits, before)
    assert BertSelfAttention in {type(module) for module in model.modules()}
