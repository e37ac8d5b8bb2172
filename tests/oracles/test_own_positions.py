"""Explicit `position_ids` with gaps, with a KV cache, against dense float64 attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from hf_posenc import patch_model

from . import naive
from .models import HEAD_DIM, HEADS, VOCABULARY, llama

LENGTH = 48
WINDOW = 20


def positions_with_gaps() -> Tensor:
    """Positions ``[token]`` that rise, with gaps in the prefill and between decoding steps."""
    steps = torch.ones(LENGTH, dtype=torch.long)
    steps[0] = 0
    steps[[9, 30, 33, 41]] += torch.tensor([4, 2, 7, 3])
    return steps.cumsum(-1)


def alibi(distance: Tensor, order: Tensor) -> naive.Positions:
    return naive.Positions(order, distance, bias=-naive.slopes(HEADS) * distance)


def rope(distance: Tensor, order: Tensor) -> naive.Positions:
    return naive.Positions(order, distance, naive.rope(HEAD_DIM))


def window(distance: Tensor, order: Tensor) -> naive.Positions:
    return naive.Positions(order & (distance < WINDOW), distance, naive.rope(HEAD_DIM))


def rerope(distance: Tensor, order: Tensor) -> naive.Positions:
    return naive.Positions(order, distance.clamp(max=WINDOW), naive.rope(HEAD_DIM))


SCHEMES: dict[str, tuple[Callable[[Tensor, Tensor], naive.Positions], dict[str, Any]]] = {
    "alibi": (alibi, {}),
    "rope": (rope, {}),
    "window": (window, {"size": WINDOW}),
    "rerope": (rerope, {"window": WINDOW}),
}
CACHES: dict[str, Callable[[Any], Any]] = {
    "growing": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=LENGTH + 5),
}


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_cached_keys_keep_their_positions(scheme: str, cache: Callable[[Any], Any]) -> None:
    define, options = SCHEMES[scheme]
    unpatched, positions = llama(), positions_with_gaps()
    ids = torch.randint(3, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(0))
    order = naive.distances(LENGTH) >= 0
    expected = naive.llama(unpatched, ids, define(positions[:, None] - positions, order))
    elsewhere = naive.llama(unpatched, ids, define(naive.distances(LENGTH), order))

    model, parts, start = patch_model(unpatched, scheme, factor=4, **options), [], 0
    held = cache(model.config)
    with torch.no_grad():
        for size in (28, *[1] * 8, 5, 7):
            now = slice(start, start + size)
            call = {"position_ids": positions[None, now], "past_key_values": held}
            parts.append(model(ids[None, now], attention_mask=torch.ones(1, now.stop), **call).logits[0])
            start += size
    read = torch.cat(parts).double()
    assert (read - expected).abs().max() < 1e-4
    assert (elsewhere - expected).abs().max() > 0.1  # control: the gaps show
