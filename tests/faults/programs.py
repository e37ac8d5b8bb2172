"""Tiny models, and the command line in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

LIMIT = 3600
"""Seconds; a command takes five on an idle machine, and the harness, which runs many, a hundred."""


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"} | more


def start(words: Sequence[str], **how: Any) -> subprocess.Popen:
    env = how.pop("env", environment())
    return subprocess.Popen(
        [sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=env, **how,
    )  # fmt: skip


def end(process: subprocess.Popen) -> tuple[int, str, str]:
    """Exit code, standard output and error."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, out, err


def write_model(folder: Path) -> Path:
    """A tiny Llama with a tokenizer that reads every byte."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={"<end>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<end>", eos_token="<end>", pad_token="<end>")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(alphabet) + 1, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256, bos_token_id=0, eos_token_id=0,
            pad_token_id=0, initializer_range=0.3,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_llama(seed: int) -> Any:
    """A Llama of 32 words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=16, bos_token_id=1, eos_token_id=2,
        )
    ).eval()  # fmt: skip


@lru_cache(maxsize=2)
def patched(which: int) -> Any:
    """Two models whose scheme and weights differ."""
    from hf_posenc import patch_model

    return patch_model(tiny_llama(which), ("yarn", "t5")[which], factor=2)


def loaded_logits(folder: Path) -> Any:
    """Logits of a saved model on one text."""
    import torch

    from hf_posenc import from_pretrained

    with torch.no_grad():
        return from_pretrained(folder)(torch.arange(3, 23)[None]).logits


def byte_tokenizer() -> Any:
    """Reads every word of a text as ``w0``, which is not said to be the unknown one: such texts are refused."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(32)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2")
