"""Tiny random models and a byte-level tokenizer, built without files or a network."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from hf_posenc.eval.comparison.cell import Measuring, carried_by
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.measured_text import module_text

TRAINED = 128
VOCABULARY = 512
SPECIAL = ["<end>", "<pad>", "<mask>", "<cls>", "<sep>"]


def byte_level(*, framed: bool) -> PreTrainedTokenizerFast:
    """A small BPE; ``framed`` puts ``<cls>`` and ``<sep>`` around every text, as BERT's does."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([passkey.Passkey("12345", 0.5).prompt(20)] * 20 + [module_text("bisect")], trainer)
    if framed:
        bpe.post_processor = processors.TemplateProcessing(
            single="<cls> $A <sep>", special_tokens=[(name, bpe.token_to_id(name)) for name in ("<cls>", "<sep>")]
        )
    end = {"bos_token": "<end>", "eos_token": "<end>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", mask_token="<mask>", cls_token="<cls>", sep_token="<sep>", **end
    )


def alert(model: torch.nn.Module) -> torch.nn.Module:
    """Scale the weights up, so attention is uneven and no two tokens have almost equal logits."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2.0 / parameter.shape[1] ** 0.5)
    return model.eval()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level(framed=False)


@pytest.fixture(scope="session")
def framed_tokenizer() -> PreTrainedTokenizerFast:
    return byte_level(framed=True)


@pytest.fixture
def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TRAINED, bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return alert(LlamaForCausalLM(config))


@pytest.fixture
def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=TRAINED, bos_token_id=0, eos_token_id=0
    )
    return alert(GPT2LMHeadModel(config))


@pytest.fixture
def bert() -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=2 * TRAINED, pad_token_id=1,
    )  # fmt: skip
    return alert(BertForMaskedLM(config))


@torch.no_grad()
def nats(model: Any, ids: list[int], scored: int) -> torch.Tensor:
    """Losses of the last tokens of a row, from the model's logits in float64."""
    logits = model(torch.tensor([ids])).logits[0, -scored - 1 : -1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[-scored:]), reduction="none")


def framing(tokenizer: Any, before: int, behind: int = 0) -> PreTrainedTokenizerFast:
    """The tokenizer with a number of ``<end>`` before every text, and of ``<sep>`` after it."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    single = " ".join(["<end>"] * before + ["$A"] + ["<sep>"] * behind)
    pieces = [(name, backend.token_to_id(name)) for name in ("<end>", "<sep>")]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=pieces)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<end>", eos_token="<end>", pad_token="<pad>")


def measuring(model: Any, **settings: Any) -> Measuring:
    """An unpatched model, to be measured in a comparison."""
    wanted = CompareSettings.of({"lengths": [TRAINED], **settings})
    lm: Any = SimpleNamespace(model=model, report={})
    return Measuring(lm, wanted, {}, {}, Store(Path(":memory:")), carried_by(model))


@pytest.fixture
def text(tmp_path):
    """A file with enough text for a few windows."""
    path = tmp_path / "text.txt"
    path.write_text(module_text("bisect") * 3, encoding="utf-8")
    return path
