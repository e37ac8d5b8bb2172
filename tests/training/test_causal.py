"""Fine-tuning tells decoders from encoders of every family, and so which loss they are trained with."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import patch_model
from hf_posenc.patching.trained_length import is_causal

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


@pytest.mark.parametrize(
    ("make", "causal"),
    [
        (lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)), True),
        (lambda: BertLMHeadModel(BertConfig(**SHAPE, is_decoder=True)), True),
        (lambda: BertForMaskedLM(BertConfig(**SHAPE)), False),
        (lambda: RobertaForMaskedLM(RobertaConfig(**SHAPE)), False),
        (lambda: ModernBertForMaskedLM(ModernBertConfig(**SHAPE, **TOKENS)), False),
    ],
    ids=["llama", "bert decoder", "bert", "roberta", "modernbert"],
)
def test_decoders_and_encoders(make, causal) -> None:
    torch.manual_seed(0)
    model = make().eval()
    assert is_causal(model) is causal
    assert is_causal(patch_model(model, "alibi")) is causal
    ids = torch.randint(3, 64, (1, 8))
    changed = ids.clone()
    changed[0, -1] = 3 + (ids[0, -1] - 2) % 61
    with torch.no_grad():  # what the model itself does: whether a later token reaches an earlier one
        reached = (model(ids).logits[0, 0] - model(changed).logits[0, 0]).abs().max() > 1e-6
    assert bool(reached) is not causal
