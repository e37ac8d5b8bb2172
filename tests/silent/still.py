"""Entries of the list of silent failures: what transformers does silently, and what we do instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TRAINED = 16
TEXT = torch.randint(3, 64, (1, 4 * TRAINED), generator=torch.Generator().manual_seed(1))


READ = {"transformers": "5.23.0", "peft": "0.21.2"}
"""Releases the entries were written down from: of an older one an entry says nothing, as it may be right there."""


@contextmanager
def silent(who: str, what: str) -> Iterator[None]:
    """What happens inside is wrong and goes unnoticed; when it is noticed, or right, the entry is out of date."""
    try:
        yield
    except BaseException as error:
        if Version(version(who)) < Version(READ.get(who, "0")):
            return
        pytest.fail(
            f"{who} is not silent any more: {what}. It says {type(error).__name__}: {str(error)[:200]}. "
            "Look whether what this package does about it can go, and then this entry."
        )


def llama(**config: object) -> LlamaForCausalLM:
    """Weights are wide, so that attention is uneven and positions show."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": TRAINED,
        "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**settings, **config})).eval()


def scaled(**rope: object) -> LlamaForCausalLM:
    """A Llama with a scaling of transformers' own."""
    return llama(rope_parameters={"rope_theta": 10000.0, **rope}, max_position_embeddings=4 * TRAINED)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=TRAINED, initializer_range=0.3, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def logits_of(model: nn.Module, ids: Tensor = TEXT, **call: object) -> Tensor:
    return model(ids, **call).logits


@torch.no_grad()
def continued(model: nn.Module, start: int, ids: Tensor = TEXT) -> Tensor:
    """The last logits of ``ids`` read in two pieces."""
    cache = model(ids[:, :start], use_cache=True).past_key_values
    return model(ids[:, start:], past_key_values=cache, use_cache=True).logits[:, -1]


def deviation(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


CLOSE, APART = 1e-3, 0.05
"""What rounding does to logits of a few units, and what a mistake does at least."""
