"""A small Llama, GPT-2 and BERT with the same weights at every call, and edits of saved folders.

Weights have a standard deviation of 0.3. With the usual 0.02 attention is uniform, and positions have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hf_posenc import disable_auto, enable_auto

TRAINED = 16
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": TRAINED, "initializer_range": 0.3,
}  # fmt: skip


def llama(**config: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    own = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**(SIZES | own | config))).eval()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=TRAINED, initializer_range=0.3, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES)).eval()


@contextmanager
def auto_classes() -> Iterator[None]:
    """Inside the block, transformers' own classes restore schemes."""
    enable_auto()
    try:
        yield
    finally:
        disable_auto()


def edit(folder: Path, name: str = "config.json", *, without: tuple[str, ...] = (), **entries: Any) -> Path:
    """Change entries of a JSON file in a folder, and drop those in ``without``; return the folder."""
    content = json.loads((folder / name).read_text(encoding="utf-8")) | entries
    remaining = {key: value for key, value in content.items() if key not in without}
    (folder / name).write_text(json.dumps(remaining), encoding="utf-8")
    return folder


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object], name: str = "model.safetensors") -> Path:
    """Change the weights in a folder with ``change``; return the folder."""
    weights = load_file(folder / name)
    change(weights)
    save_file(weights, folder / name, metadata={"format": "pt"})
    return folder
