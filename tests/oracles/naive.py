"""Reference forward passes of Llama, GPT-2 and BERT from the definitions: dense attention in float64.

Attention is written out here. The models contribute only their weights and their layers without positions (norms,
projections, MLPs). Nothing of the engine, the adapters or the schemes is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Whole = Callable[[Any, Tensor, "Positions"], Tensor]


@dataclass(frozen=True)
class Positions:
    """Everything position does in one text of L tokens.

    Attributes:
        seen: the attention mask, ``[L, L]`` bool, rows are queries.
        distance: distances for the rotation, ``[L, L]``.
        frequencies: radians per token, ``[pairs]`` or one row a query ``[L, pairs]``; None where nothing is rotated.
        bias: added to the scaled scores, ``[heads, L, L]``.
        row_scale: factor of each row's scores before the bias, ``[L]``.
        logit_scale: factor of all logits.
        code: added to the token embeddings, ``[L, width]``.
    """

    seen: Tensor
    distance: Tensor
    frequencies: Tensor | None = None
    bias: Tensor | float = 0.0
    row_scale: Tensor | float = 1.0
    logit_scale: float = 1.0
    code: Tensor | float = 0.0

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of one text, each ``[heads, L, head_dim]``, to ``[L, heads · head_dim]``."""
        groups = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        weights = self.logits(query, key).masked_fill(~self.seen, -math.inf).softmax(-1)
        return (weights @ value).transpose(0, 1).flatten(1)

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """Logits of all pairs before the mask, with one key head per query head: ``[heads, L, L]``."""
        scale = torch.as_tensor(self.row_scale, dtype=torch.float64).reshape(-1, 1)
        scaled = self.scores(query, key) * scale / math.sqrt(query.shape[-1])
        return (scaled + self.bias_of(query, key)) * self.logit_scale

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Products q · k of all pairs, rotated if there are frequencies."""
        if self.frequencies is None:
            return query @ key.mT
        return rotated_scores(query, key, self.distance, self.frequencies)

    def bias_of(self, query: Tensor, key: Tensor) -> Tensor | float:
        """Bias of the scaled scores."""
        return self.bias


def causal(length: int) -> Positions:
    """A text read from left to right, without positions."""
    distance = distances(length)
    return Positions(distance >= 0, distance)


def both_ways(length: int) -> Positions:
    """A text in which every token sees all tokens."""
    distance = distances(length)
    return Positions(torch.ones_like(distance, dtype=torch.bool), distance)


def free(model: str, length: int) -> Positions:
    """A text without positions, as an unpatched model reads it."""
    return both_ways(length) if model == "bert" else causal(length)


def slopes(heads: int) -> Tensor:
    """ALiBi's slopes for a power of two: 2^(−8 (h + 1) / H), ``[heads, 1, 1]``."""
    return 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)[:, None, None]


def distances(length: int) -> Tensor:
    """i − j, ``[L, L]``."""
    index = torch.arange(length)
    return index[:, None] - index[None, :]


def rotated_scores(query: Tensor, key: Tensor, distance: Tensor, frequencies: Tensor) -> Tensor:
    """Re Σ_m q_m k*_m e^(i ω_m Δ), channels m and m + d/2 as the parts of one complex number."""
    angles = distance.double()[..., None] * (frequencies if frequencies.ndim == 1 else frequencies[:, None])
    rotation = torch.polar(torch.ones_like(angles), angles)
    return torch.einsum("him,hjm,ijm->hij", as_complex(query), as_complex(key).conj(), rotation).real


def as_complex(x: Tensor) -> Tensor:
    """``[…, d]`` in the half layout to ``[…, d/2]``."""
    real, imaginary = x.double().chunk(2, dim=-1)
    return torch.complex(real, imaginary)


def rope(dims: int, base: float = 10_000.0) -> Tensor:
    """ω_m = base^(−2m / dims), float64."""
    return base ** (-2 * torch.arange(dims // 2, dtype=torch.float64) / dims)


@torch.no_grad()
def llama(model: Any, ids: Tensor, positions: Positions) -> Tensor:
    """Logits of one text ``[L]``, ``[L, vocabulary]``."""
    exact = copy.deepcopy(model).double()
    x = exact.model.embed_tokens(ids) + positions.code
    for layer in exact.model.layers:
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (split(p(normed), attention.head_dim) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        x = x + attention.o_proj(positions.mix(q, k, v))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return exact.lm_head(exact.model.norm(x))


@torch.no_grad()
def gpt2(model: Any, ids: Tensor, positions: Positions) -> Tensor:
    """Logits of one text ``[L]``, ``[L, vocabulary]``; its own table is the caller's to add."""
    exact = copy.deepcopy(model).double()
    x = exact.transformer.wte(ids) + positions.code
    for block in exact.transformer.h:
        q, k, v = (split(part, block.attn.head_dim) for part in block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1))
        x = x + block.attn.c_proj(positions.mix(q, k, v))
        x = x + block.mlp(block.ln_2(x))
    return exact.lm_head(exact.transformer.ln_f(x))


@torch.no_grad()
def bert(model: Any, ids: Tensor, positions: Positions) -> Tensor:
    """Logits of one text ``[L]``, ``[L, vocabulary]``; its own table is the caller's to add."""
    exact = copy.deepcopy(model).double()
    parts = exact.bert.embeddings
    x = parts.LayerNorm(parts.word_embeddings(ids) + parts.token_type_embeddings.weight[0] + positions.code)
    for layer in exact.bert.encoder.layer:
        own = layer.attention.self
        q, k, v = (split(p(x), own.attention_head_size) for p in (own.query, own.key, own.value))
        x = layer.attention.output(positions.mix(q, k, v), x)
        x = layer.output(layer.intermediate(x), x)
    return exact.cls(x)


def split(x: Tensor, head_dim: int) -> Tensor:
    """``[L, heads · head_dim]`` to ``[heads, L, head_dim]``."""
    return x.unflatten(-1, (-1, head_dim)).transpose(0, 1)
