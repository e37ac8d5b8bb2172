"""Tiny models with sharp attention, and their logits of one text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from hf_posenc import enable_auto
from hf_posenc.checkpoints.auto import disable_auto

TRAINED, FACTOR = 16, 4
WIDE = 0.3  # standard deviation of weights: the usual 0.02 attends evenly and hides positions


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=TRAINED, initializer_range=WIDE, bos_token_id=1,
            eos_token_id=2,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=TRAINED, initializer_range=WIDE, bos_token_id=1,
            eos_token_id=2,
        )
    )  # fmt: skip


def bert() -> PreTrainedModel:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=TRAINED, initializer_range=WIDE,
        )
    )  # fmt: skip


def edit(folder: Path, name: str = "config.json", **entries: Any) -> None:
    """Change entries of a JSON file in a folder."""
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


@contextmanager
def auto_classes() -> Iterator[None]:
    """Let transformers' own classes restore schemes in the block."""
    enable_auto()
    try:
        yield
    finally:
        disable_auto()


class Hub:
    """Stands in for `huggingface_hub.HfApi`; ``card`` is the file of the card that is there."""

    def __init__(self, card: str | None) -> None:
        self.card, self.private = card, False
        self.sent: dict[str, bytes] = {}

    def create_repo(self, name: str, *, private: bool | None = None, exist_ok: bool) -> Any:
        assert exist_ok
        self.private = bool(private)
        return SimpleNamespace(repo_id=name if "/" in name else f"ada/{name}")

    def hf_hub_download(self, name: str, file: str, **_: Any) -> str:
        if self.card is None:
            raise EntryNotFoundError(file)
        return self.card

    def upload_folder(self, *, repo_id: str, folder_path: Path, ignore_patterns: Any = None, **_: Any) -> str:
        files = {str(file.relative_to(folder_path)): file for file in Path(folder_path).rglob("*") if file.is_file()}
        kept = filter_repo_objects(files, ignore_patterns=ignore_patterns)
        self.sent = {name: files[name].read_bytes() for name in kept}
        return f"of {repo_id}"


MODELS = {"llama": llama, "gpt2": gpt2, "bert": bert}


@pytest.fixture
def make_model() -> Callable[[str], PreTrainedModel]:
    """The same weights at every call."""

    def make(kind: str) -> PreTrainedModel:
        torch.manual_seed(0)
        return MODELS[kind]().eval()

    return make


@pytest.fixture
def logits_of() -> Callable[[nn.Module], Tensor]:
    """Logits (or hidden states) at every position of one text as long as the target."""
    ids = torch.randint(5, 64, (2, FACTOR * TRAINED), generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def of(model: nn.Module, length: int | None = None) -> Tensor:
        return model.eval()(ids[:, :length])[0]

    return of


@pytest.fixture
def perturb() -> Callable[[nn.Module], None]:
    """Give every trainable or positional parameter another value, as training would."""

    @torch.no_grad()
    def of(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(2)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad or "posenc" in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)

    return of


@pytest.fixture
def run_in_new_process(tmp_path) -> Callable[[str], str]:
    """Run a program in a fresh process, in the test's folder; returns what it printed last."""

    def run(program: str) -> str:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip().rpartition("\n")[2]

    return run
