"""Forward passes of checks: random inputs, outputs with and without a cache, and the deviation between two outputs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel, StaticCache

from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.forward.host_calls import cache_argument
from hf_posenc.patching.state import base_model_of


def random_tokens(model: nn.Module, length: int, rows: int = 1, seed: int = 0) -> Tensor:
    """Random token ids ``[row, token]``, equal for equal arguments."""
    generator = torch.Generator().manual_seed(seed)
    base: Any = base_model_of(model)[0]
    vocabulary = getattr(base.config, "vocab_size", None) or base.get_input_embeddings().num_embeddings
    return torch.randint(3, vocabulary, (rows, length), generator=generator).to(next(model.parameters()).device)


def positions_from(model: nn.Module, length: int, start: int = 0) -> Tensor:
    """Positions ``[1, token]`` of a text whose first token has position ``start``."""
    return torch.arange(start, start + length, device=next(model.parameters()).device)[None]


def config_of(model: nn.Module) -> PreTrainedConfig:
    """The configuration of the base model."""
    return base_model_of(model)[0].config


def output_module(model: nn.Module) -> nn.Module:
    """The module whose output has a vector for every token: a language model itself, otherwise its base model."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return base_model_of(model)[0] if head is None else model


def forward(model: nn.Module, tokens: Tensor, *, seed: int = 0, **call: Any) -> Tensor:
    """Logits, or hidden states of a model without a vocabulary head: ``[row, token, width]``, float32, no gradient.

    Seeds torch in a forked random state, so schemes that draw positions draw the same ones in every call.
    """
    with torch.no_grad(), fixed_seed(seed):
        return forward_with_grad(model, tokens, **call).float()


def forward_with_grad(model: nn.Module, tokens: Tensor, **call: Any) -> Tensor:
    """Outputs as in `forward`, with gradient, in the dtype of the model, and without a seed."""
    cache = call.pop("cache", None)
    named = cache_argument(type(base_model_of(model)[0]), cache)
    return token_states(output_module(model)(input_ids=tokens, use_cache=cache is not None, **named, **call))


def token_states(out: Any) -> Tensor:
    """The first three-dimensional tensor of a model's output, ``[row, token, width]``."""
    return next(value for value in out.values() if isinstance(value, Tensor) and value.ndim == 3)


def forward_in_chunks(
    model: nn.Module, tokens: Tensor, cache: Cache, sizes: list[int], mask: Tensor | None = None
) -> Tensor:
    """Outputs ``[row, token, width]`` of a text passed in chunks with a KV cache; ``mask`` covers the whole text."""
    parts, start = [], 0
    for size in sizes:
        end = start + size
        keywords: dict[str, Any] = {} if mask is None else {"attention_mask": mask[:, :end]}
        parts.append(forward(model, tokens[:, start:end], cache=cache, **keywords))
        start = end
    return torch.cat(parts, dim=1)


def chunk_sizes(cut: int, step: int, length: int) -> list[int]:
    """Chunk lengths of a text: first ``cut`` tokens, then ``step`` at a time."""
    chunks, remainder = divmod(length - cut, step)
    sizes = [cut, *[step] * chunks]
    return [*sizes, remainder] if remainder else sizes


def new_cache(kind: type[Cache], model: nn.Module, length: int) -> Cache:
    """An empty cache with capacity for a text of that length."""
    config = config_of(model)
    if kind is DynamicCache:
        return DynamicCache(config=config)
    return StaticCache(config=config, max_cache_len=length)


@contextmanager
def earlier_objects_set_aside() -> Iterator[None]:
    """Inside the block, exclude existing objects, often millions, from garbage collection."""
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if before == 0:  # objects that the caller has frozen stay frozen
            gc.unfreeze()


@contextmanager
def attention_backend(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Inside the block, the model computes attention with another backend."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        model.set_attn_implementation(before)


def max_deviation(output: Tensor, expected: Tensor, real: Tensor | None = None) -> tuple[float, str]:
    """Largest deviation between two outputs ``[row, token, width]`` in standard deviations, and its token.

    Args:
        output: output under test.
        expected: expected output; its standard deviation, at least 1, is the unit.
        real: ``[row, token]`` bool, the tokens to compare; all by default.
    """
    deviation = (output - expected).abs().amax(-1)
    if real is not None:
        deviation = deviation.masked_fill(~real, 0.0)
    spread = float(expected.float().std().clamp(min=1.0))
    worst = int(deviation.nan_to_num(nan=torch.inf).argmax())
    row, token = divmod(worst, deviation.shape[1])
    return float(deviation.flatten()[worst]) / spread, f"token {token} of row {row}"
