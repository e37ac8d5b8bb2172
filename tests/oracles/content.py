"""References of content biases: a block of rows without a model, and whole models with a bias for each layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Block

from .models import HEAD_DIM, HEADS
from .naive import Positions

OfLayer = Callable[[Tensor, Tensor], Tensor]


def context(positions: Tensor, *, causal: bool, keys: Tensor | None = None, contiguous: bool = True) -> PositionContext:
    """Context of a call with query positions ``[batch, query]``, and other key positions if given."""
    return PositionContext(positions, positions if keys is None else keys, causal, contiguous)


def block(ctx: PositionContext, query: Tensor, key: Tensor, rows: slice = slice(None)) -> Block:
    """Rows of a call of ``query [batch, heads, query, head_dim]`` and ``key [batch, kv_heads, key, head_dim]``."""
    row_queries, scaling = query[:, :, rows], 1 / math.sqrt(query.shape[-1])
    distance = ctx.distance(rows)[:, None]
    seen = distance >= 0 if ctx.causal else torch.ones_like(distance, dtype=torch.bool)
    scores = row_queries @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT * scaling
    return Block(row_queries, key, scores, scaling, rows, ctx.query_positions[:, rows], ctx.key_positions, seen)


def queries_and_keys(queries: int, keys: int, kv_heads: int = HEADS, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Random vectors, each ``[batch, heads, token, head_dim]``."""
    torch.manual_seed(5)
    return torch.randn(batch, HEADS, queries, HEAD_DIM), torch.randn(batch, kv_heads, keys, HEAD_DIM)


def drawn(scheme: Any, seed: int = 3, std: float = 1.0) -> Any:
    """The scheme with random parameters, large enough to change outputs."""
    torch.manual_seed(seed)
    for weight in scheme.parameters():
        torch.nn.init.normal_(weight, std=std)
    return scheme


def stirred(scheme: Any, seed: int = 0, by: float = 0.5) -> Any:
    """The scheme with every parameter moved at random, across zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=by)
    return scheme


def spread(rows: Tensor) -> float:
    """Largest deviation of an entry from the mean of its row: softmax ignores a constant per row."""
    return float((rows - rows.mean(-1, keepdim=True)).abs().max())


@dataclass(frozen=True)
class OfContent(Positions):
    """Positions with a bias of queries and keys, another one in every layer.

    Attributes:
        layers: each maps ``q [heads, L, head_dim]`` and ``k`` of as many heads to a bias ``[heads, L, L]``.
    """

    layers: Iterator[OfLayer] = field(default_factory=lambda: iter(()))

    def bias_of(self, query: Tensor, key: Tensor) -> Tensor | float:
        """That of the next layer."""
        return next(self.layers)(query, key)


def with_layers(text: Positions, layers: list[OfLayer], **more: Any) -> OfContent:
    """A text of which every layer has a bias of its own."""
    return OfContent(text.seen, text.distance, layers=iter(layers), **more)


def attention_inputs(model: Any) -> list[Tensor]:
    """Fills with what each layer's attention reads, ``[L, width]``, while a formula runs on a copy of the model."""
    inputs: list[Tensor] = []
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "c_attn", "self.query")):
            module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    return inputs
