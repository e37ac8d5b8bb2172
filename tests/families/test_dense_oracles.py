"""Families whose attention is more than a softmax, against dense attention in float64.

The oracle is the family's own model in double precision, without its rotation, on an attention function written here:
scores of every pair of tokens from a formula of their distance.

    score(i, j) = Re Σ_m q_im · conj(k_jm) · e^(i ω_m d(i, j)) + Σ_rest q_i k_j + b(i, j)

with pairs of channels as complex numbers.

Norms of queries and keys, bounded scores, sinks of the model, latent keys and windows are the family's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from hf_posenc import patch_model

from .tiny import cached, tiny, tokens

NAME = "dense_float64"
LENGTH = 40
ROUNDING = 1e-4  # of the largest logit: float32 against float64
UNSCALED = {"rope_type": "default", "rope_theta": 1e4}


@dataclass(frozen=True)
class Family:
    """How a family pairs the channels of a head.

    Attributes:
        start, dims: the rotated channels as the attention function is given them.
        interleaved: whether neighbours are a pair, or channels half of ``dims`` apart.
        options: of the tiny configuration.
    """

    start: int
    dims: int
    interleaved: bool
    options: dict[str, Any]


ROPE = {"rope_parameters": UNSCALED}
FAMILIES = {
    "qwen3": Family(0, 16, False, ROPE),  # norms of queries and keys
    "gemma2": Family(0, 16, False, {**ROPE, "attn_logit_softcapping": 0.5, "sliding_window": 16}),
    "gpt_oss": Family(0, 16, False, {**ROPE, "sliding_window": 16}),  # a sink in every head
    "phi": Family(0, 8, False, {"rope_parameters": {**UNSCALED, "partial_rotary_factor": 0.5}}),
    "cohere": Family(0, 16, True, ROPE),
    "deepseek_v3": Family(16, 16, False, ROPE),  # keys from a latent vector; its own code reorders the pairs
}


def clipped(distance: Tensor) -> Tensor:
    """ReRoPE's distances for a window of 8."""
    return distance.clamp(max=8)


SLOPES = 2.0 ** (-2 * torch.arange(1, 5, dtype=torch.float64))  # ALiBi's of four heads
Formula = tuple[float, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
FORMULAS: dict[str, Formula] = {  # divisor of the frequencies (0: no rotation), distances, bias of distances
    "rope": (1.0, lambda d: d, torch.zeros_like),
    "none": (0.0, lambda d: d, torch.zeros_like),
    "pi": (4.0, lambda d: d, torch.zeros_like),
    "rerope": (1.0, clipped, torch.zeros_like),
    "alibi": (0.0, lambda d: d, lambda d: -SLOPES[:, None, None] * d),
}
OPTIONS: dict[str, dict[str, Any]] = {"pi": {"factor": 4}, "rerope": {"window": 8}}


def dense(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **call: Any) -> Any:
    """Attention ``[batch, query, heads, head_dim]`` of queries and keys that are not rotated."""
    family, (divisor, distances, bias) = module.config.oracle
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    position = torch.arange(q.shape[2], dtype=torch.float64)
    distance = position[:, None] - position
    scores = rotated_scores(q, k, distances(distance), family, divisor) * scaling
    if call.get("softcap") is not None:
        scores = call["softcap"] * torch.tanh(scores / call["softcap"])
    scores = scores + bias(distance) + mask
    if call.get("s_aux") is not None:
        sink = call["s_aux"].view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ v).transpose(1, 2).contiguous(), None


def rotated_scores(q: Tensor, k: Tensor, distance: Tensor, family: Family, divisor: float) -> Tensor:
    """q · k of every pair, with the rotated channels turned by their distance."""
    end, half = family.start + family.dims, family.dims // 2
    pairs = []
    for x in (q, k):
        part = x[..., family.start : end]
        one, two = (part[..., ::2], part[..., 1::2]) if family.interleaved else (part[..., :half], part[..., half:])
        pairs.append(torch.complex(one, two))
    steps = torch.arange(half, dtype=torch.float64)
    frequencies = 1e4 ** (-steps / half) / divisor if divisor else torch.zeros(half, dtype=torch.float64)
    turned = torch.exp(1j * distance[..., None] * frequencies)
    rotated = torch.einsum("bhim,bhjm,ijm->bhij", pairs[0], pairs[1].conj(), turned).real
    rest = [torch.cat((x[..., : family.start], x[..., end:]), dim=-1) for x in (q, k)]
    return rotated + rest[0] @ rest[1].transpose(-1, -2)


AttentionInterface.register(NAME, dense)
AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


@contextmanager
def unrotated(model: nn.Module) -> Iterator[None]:
    """Inside the block, the rotary modules of a model return cosines of one and sines of zero."""

    def silent(module: nn.Module, args: Any, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.ones_like(out[0]), torch.zeros_like(out[1])

    rotaries = [module for name, module in model.named_modules() if name.endswith("rotary_emb")]
    assert rotaries
    handles = [module.register_forward_hook(silent) for module in rotaries]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def oracle(name: str, scheme: str, ids: Tensor) -> Tensor:
    """Logits ``[batch, token, vocabulary]`` in float64."""
    model = tiny(name, **FAMILIES[name].options).double()
    model.set_attn_implementation(NAME)
    for module in model.modules():
        if getattr(module, "config", None) is not None:
            module.config.oracle = FAMILIES[name], FORMULAS[scheme]
            module.config._experts_implementation_internal = "eager"  # others take no float64
    with unrotated(model), torch.no_grad():
        return model(ids, use_cache=False).logits


@pytest.mark.parametrize("scheme", FORMULAS)
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_dense_attention(name: str, scheme: str) -> None:
    ids, stock = tokens(LENGTH), tiny(name, **FAMILIES[name].options)
    patched = patch_model(copy.deepcopy(stock), scheme, layers="all", **OPTIONS.get(scheme, {}))
    expected = oracle(name, scheme, ids)
    assert deviation(patched(ids, use_cache=False).logits, expected) < ROUNDING
    assert deviation(cached(patched, ids, 20, chunk=11), expected) < ROUNDING
    if scheme == "rope":
        assert deviation(stock(ids, use_cache=False).logits, expected) < ROUNDING
    else:  # a control
        assert deviation(stock(ids, use_cache=False).logits, expected) > 100 * ROUNDING


def deviation(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest logit."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("name", "keyword"), [("gemma2", "softcap"), ("gpt_oss", "s_aux")])
def test_control_what_the_family_adds_counts(name: str, keyword: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tokens(LENGTH)
    whole = oracle(name, "alibi", ids)

    def without(*args: Any, **call: Any) -> Any:
        return dense(*args, **{**call, keyword: None})

    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, without)
    assert deviation(oracle(name, "alibi", ids), whole) > 10 * ROUNDING


@torch.no_grad()
def test_a_bias_at_distance_zero_counts_beside_a_sink() -> None:
    """FIRE's is not 0 there: left out of decoded tokens, it would shift all scores but that of the sink."""
    ids, model = tokens(LENGTH), patch_model(tiny("gpt_oss", **FAMILIES["gpt_oss"].options), "fire", layers="all")
    assert deviation(cached(model, ids, LENGTH - 3, chunk=1), model(ids, use_cache=False).logits) < ROUNDING
