"""A tiny random decoder, two texts of different modules, and a search over few schemes that is quick to measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_posenc.eval.texts.stdlib_source import module_text
from hf_posenc.insight.search import SearchResult, search
from hf_posenc.schemes.entry import entries_of
from hf_posenc.starters.loading import starter_path

TRAINED, TARGET = 32, 64
FAMILIES = "rerope,pi,window"
ARMS = "rerope:window=8,rerope:window=16,window:size=16"


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TRAINED,
    )  # fmt: skip
    built = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter *= 8.0 if parameter.ndim == 2 else 1.0  # sharp attention, so that positions matter
    return built


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(starter_path("llama"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    files = folder / "own.py", folder / "other.py"
    for file, name in zip(files, ("difflib", "argparse"), strict=True):
        file.write_text(module_text(name)[:1000], encoding="utf-8")
    return files


@pytest.fixture
def few(
    model: Any, tokenizer: Any, texts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., SearchResult]:
    """A search over few arms, whose plan follows from the size of the texts alone: the budget pays for everything."""
    monkeypatch.setattr("hf_posenc.insight.search.run.families_of", lambda *_: entries_of(FAMILIES))
    for module in ("run", "steps"):
        monkeypatch.setattr(f"hf_posenc.insight.search.{module}.drawn", lambda *_: entries_of(ARMS))
    own, other = texts

    def found(out: Path, **given: Any) -> SearchResult:
        given = {"text": own, "eval_text": other, "budget": "100h", "tokenizer": tokenizer} | given
        return search(model, given.pop("target", TARGET), out=out, **given)

    return found
