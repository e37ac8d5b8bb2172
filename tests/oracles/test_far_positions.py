"""Positions with gaps and a KV cache, and key biases at positions of millions, against dense float64 attention.

A slope of 0.7 at position 4,000,000 is 2,800,000, and float32 goes in steps of 1/4 there: whoever rounds the bias of a
key before counting it from a row is off by as much in a logit. The definition knows distances only. Slopes that are
powers of two, as those of 4, 8 and 16 heads, float32 multiplies exactly: they hide all of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import KeyBias
from hf_posenc.schemes.bias import alibi

from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED

FAR = [0, 131_072, 4_000_000]
LENGTH = 200
RELEASED = naive.slopes(HEADS).flatten()  # 1/4 … 1/256
SLOPES = torch.tensor([0.7, 0.3, 1 / 60, 2.9], dtype=torch.float64)
OPTIONS: dict[str, dict[str, Any]] = {
    "code": {}, "given": {"slopes": SLOPES.tolist()}, "learned": {"slopes": "learned", "interpolate": 1.3}
}  # fmt: skip


def expected(model_name: str, ids: torch.Tensor, slopes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    build, formula = models.MODELS[model_name]
    distance = positions[:, None] - positions[None, :]
    bias = -slopes[:, None, None] * distance.double()
    return formula(build(), ids, naive.Positions(distance >= 0, distance, bias=bias))


def at(positions: torch.Tensor, **more: Any) -> dict[str, Any]:
    return {
        "position_ids": positions[None],
        "attention_mask": torch.ones(1, int(positions.numel()), dtype=torch.long),
        **more,
    }


@pytest.mark.parametrize("first", FAR)
@pytest.mark.parametrize("kind", OPTIONS)
@torch.no_grad()
def test_alibi(kind: str, first: int) -> None:
    ids, positions = models.text(LENGTH), torch.arange(LENGTH) + first
    slopes = {"code": RELEASED, "given": SLOPES, "learned": RELEASED / 1.3}[kind]
    model = patch_model(models.llama(), "alibi", factor=LENGTH / TRAINED, **OPTIONS[kind])
    found = model(ids[None], use_cache=False, **at(positions)).logits[0].double()
    assert (found - expected("llama", ids, slopes, positions)).abs().max() < 1e-4


@pytest.mark.parametrize("first", FAR)
@torch.no_grad()
def test_alibi_decoded_behind_a_cache(first: int) -> None:
    """Prefill in two chunks, then one token at a time, each with its position."""
    ids, positions = models.text(60), torch.arange(60) + first
    model, cache = patch_model(models.llama(), "alibi", factor=2, **OPTIONS["given"]), DynamicCache()
    parts = []
    for start, end in ((0, 20), (20, 50), *((n, n + 1) for n in range(50, 60))):
        mask = torch.ones(1, end, dtype=torch.long)
        inputs = {"position_ids": positions[None, start:end], "attention_mask": mask, "past_key_values": cache}
        parts.append(model(ids[None, start:end], **inputs).logits[0].double())
    assert (torch.cat(parts) - expected("llama", ids, SLOPES, positions)).abs().max() < 1e-4


CASTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float32": lambda x: x.float(), "bfloat16": lambda x: x.bfloat16().float()
}  # fmt: skip


@pytest.mark.parametrize("cast", CASTS)
@torch.no_grad()
def test_control_a_rounded_bias_is_another_model(cast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(slopes: torch.Tensor, ctx: PositionContext) -> KeyBias:
        return KeyBias(CASTS[cast](slopes[:, None] * ctx.key_positions.double()[:, None, :]), slopes)

    monkeypatch.setattr(alibi, "_key_bias", rounded)
    ids, positions = models.text(LENGTH), torch.arange(LENGTH) + FAR[-1]
    model = patch_model(models.llama(), "alibi", factor=LENGTH / TRAINED, **OPTIONS["given"])
    found = model(ids[None], use_cache=False, **at(positions)).logits[0].double()
    assert (found - expected("llama", ids, SLOPES, positions)).abs().max() > 1e-2


GAPPED, WINDOW = 48, 20


def positions_with_gaps() -> torch.Tensor:
    """Positions ``[token]`` that rise, with gaps in the prefill and between decoding steps."""
    steps = torch.ones(GAPPED, dtype=torch.long)
    steps[0] = 0
    steps[[9, 30, 33, 41]] += torch.tensor([4, 2, 7, 3])
    return steps.cumsum(-1)


Define = Callable[[torch.Tensor, torch.Tensor], naive.Positions]
ROPE = naive.rope(HEAD_DIM)
SCHEMES: dict[str, tuple[Define, dict[str, Any]]] = {
    "alibi": (lambda apart, order: naive.Positions(order, apart, bias=-naive.slopes(HEADS) * apart), {}),
    "rope": (lambda apart, order: naive.Positions(order, apart, ROPE), {}),
    "window": (lambda apart, order: naive.Positions(order & (apart < WINDOW), apart, ROPE), {"size": WINDOW}),
    "rerope": (lambda apart, order: naive.Positions(order, apart.clamp(max=WINDOW), ROPE), {"window": WINDOW}),
}
CACHES: dict[str, Callable[[Any], Any]] = {
    "growing": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=GAPPED + 5),
}


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_cached_keys_keep_their_positions(scheme: str, cache: Callable[[Any], Any]) -> None:
    define, options = SCHEMES[scheme]
    unpatched, positions, ids = models.llama(), positions_with_gaps(), models.text(GAPPED)
    order = naive.distances(GAPPED) >= 0
    expected = naive.llama(unpatched, ids, define(positions[:, None] - positions, order))
    elsewhere = naive.llama(unpatched, ids, define(naive.distances(GAPPED), order))
    model, parts, start = patch_model(unpatched, scheme, factor=4, **options), [], 0
    held = cache(model.config)
    with torch.no_grad():
        for size in (28, *[1] * 8, 5, 7):
            now = slice(start, start + size)
            call = {"position_ids": positions[None, now], "past_key_values": held}
            parts.append(model(ids[None, now], attention_mask=torch.ones(1, now.stop), **call).logits[0])
            start += size
    assert (torch.cat(parts).double() - expected).abs().max() < 1e-4
    assert (elsewhere - expected).abs().max() > 0.1  # control: the gaps show
