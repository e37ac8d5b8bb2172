"""The command line, called in this process: a fresh interpreter for every call would cost seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc.cli import main
from hf_posenc.starters import load_starter


@dataclass(frozen=True)
class Answer:
    """Result of a call of the command line."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str) -> Answer:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        seen = capsys.readouterr()
        return Answer(int(end.value.code or 0), seen.out, seen.err)

    return run


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama with the bundled model's tokenizer, a tenth as large."""
    folder = tmp_path_factory.mktemp("models") / "small"
    _, tokenizer = load_starter("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=len(tokenizer),
        max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
