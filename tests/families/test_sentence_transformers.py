"""A patched encoder inside sentence-transformers: it reads past its trained length, and is saved and loaded."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

from hf_posenc import describe, patch_model

from ..small_models import auto_classes

sentence_transformers = pytest.importorskip("sentence_transformers")
tokenizers = pytest.importorskip("tokenizers")
TRAINED = 64
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SIZES: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "max_position_embeddings": TRAINED,
}
MODERN: dict[str, Any] = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
CASES = {"bert": ("alibi", BertModel, BertConfig(**SIZES))}
CASES["modernbert"] = ("yarn", ModernBertModel, ModernBertConfig(**SIZES, **MODERN))
LONG, SHORT = " ".join(f"w{number * 7 % 60}" for number in range(3 * TRAINED)), "w1 w2 w3"


def sentence_model(name: str, folder: Path) -> Any:
    """A random encoder of a family with mean pooling."""
    _, cls, config = CASES[name]
    torch.manual_seed(0)
    cls(config).save_pretrained(folder)
    words = {word: number for number, word in enumerate([*SPECIAL, *(f"w{number}" for number in range(60))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=TRAINED, **named).save_pretrained(folder)
    parts = importlib.import_module("sentence_transformers.models")
    modules = [parts.Transformer(str(folder)), parts.Pooling(config.hidden_size)]
    return sentence_transformers.SentenceTransformer(modules=modules, device="cpu")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_read_past_the_trained_length_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, start = sentence_model(name, tmp_path / "encoder"), " ".join(LONG.split()[:TRAINED])
    stock = model.encode([LONG, SHORT])
    assert np.allclose(stock[0], model.encode([start])[0], atol=1e-6)  # it reads no further
    patch_model(model, CASES[name][0], factor=4)
    assert model.max_seq_length == describe(model).target_length == 4 * TRAINED
    found = model.encode([LONG, SHORT])
    assert np.abs(found[0] - model.encode([start])[0]).max() > 1e-3
    assert np.allclose(found[1], model.encode([SHORT])[0], atol=1e-5)  # beside padding and alone
    model.save(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="hf_posenc"):  # transformers alone would drop the scheme
        sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    with auto_classes():
        loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert (describe(loaded), loaded.max_seq_length) == (describe(model), 4 * TRAINED)
    assert np.array_equal(loaded.encode([LONG, SHORT]), found)
