"""Models of a benchmark: a given model or one with random weights, unpatched and patched.

Both variants share the memory of the weights, but not of the gradients.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.entry import Entry

UNPATCHED, PATCHED = "unpatched", "patched"
SEED = 0


def variant(model: PreTrainedModel, role: str, entry: Entry, length: int, target: int) -> PreTrainedModel:
    """Build the variant of ``model`` in a role, unpatched or patched; it shares the weights."""
    if role == UNPATCHED:
        chosen = lengthened(model, length)
    else:
        chosen = copy_with_shared_weights(model)
        lengths = dict(entry.lengths)
        if not lengths.keys() & {"factor", "target_length"}:
            lengths["target_length"] = target
        with fixed_seed(SEED):
            scheme: str = entry.scheme  # type: ignore[assignment]  # `BenchSettings` refuses an entry without one
            patch_model(chosen, scheme, **{**entry.own_options, **lengths})
    chosen.set_attn_implementation("sdpa")
    return chosen


def copy_with_shared_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model so that it shares the memory of all weights."""
    same = {id(p): nn.Parameter(p.data, requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo={**same, id(model.config): copy.deepcopy(model.config)})


def lengthened(model: PreTrainedModel, length: int) -> PreTrainedModel:
    """Copy a model so that it runs at a length, for timing only; a position table is repeated past its end."""
    base, adapter = base_model_of(model)
    known: Any = base.config
    if length <= adapter.host_length(known):
        return copy_with_shared_weights(model)
    trained = adapter.trained_length(known)
    if adapter.geometry(known, trained_length=trained, target_length=trained).table is None:
        longer = copy_with_shared_weights(model)
        longer.config.max_position_embeddings = length
        return longer
    config = copy.deepcopy(model.config)
    config.max_position_embeddings = length
    longer = type(model)(config).to(model.device, model.dtype)
    weights = dict(model.named_parameters())
    for name, weight in longer.named_parameters():
        old = weights[name].data
        weight.data = old if old.shape == weight.shape else old.repeat(-(-length // len(old)), 1)[:length]
    return longer.train(model.training)


VOCABULARY = 1024  # small, so that the head does not hide the layers


def random_model(shape: tuple[int, int, int, int], trained_length: int, dtype: torch.dtype) -> Any:
    """Build a Llama with random weights.

    Args:
        shape: layers, hidden size, heads, key-value heads.
        trained_length: context length in its configuration, in tokens.
        dtype: dtype of the weights.

    Raises:
        OptionOutOfRange: the sizes do not divide evenly.
    """
    layers, hidden, heads, kv_heads = shape
    if hidden % heads or (hidden // heads) % 2 or heads % kv_heads:
        raise OptionOutOfRange(
            f"shape has {hidden} channels, {heads} heads and {kv_heads} key-value heads, which do not divide evenly. "
            "Choose for example 4,256,4,2."
        )
    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=8 * hidden // 3, vocab_size=VOCABULARY, max_position_embeddings=trained_length,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with fixed_seed(SEED):
        return LlamaForCausalLM(config).to(dtype).eval()
