"""Defaults that golden checkpoints do not show are the published numbers, and learned parameters start as published.

A default is part of what a name means: changed, old calls and old notebooks would silently compute something else.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

from hf_posenc.schemes.registry import scheme_class

from . import models

PUBLISHED: dict[str, dict[str, Any]] = {
    "cape": {"max_shift": 5.0, "jitter": 0.5},
    "cope": {"npos": 64},
    "deberta": {"span": 512, "buckets": 256},  # deberta-v2-xlarge and v3
    "dyn_bias": {"width": 128, "depth": 2},
    "llama4_temp": {"scale": 0.1, "floor": 8192, "offset": 1},  # attn_scale and floor_scale of Llama 4
    "longrope": {"keep_start": 0},
    "pose": {"chunks": 2},
    "rel_bias": {"std": 0.02},
    "shaw": {"max_distance": 16},  # section 4.1
    "t5": {"num_buckets": 32, "max_distance": 128},
}
# Mean and deviation of what is drawn, in a model of width 512 with heads of 64.
DRAWN = {
    "deberta": {"table.weight": (0.0, 0.02), "norm.weight": (1.0, 0.0), "norm.bias": (0.0, 0.0)},
    "fire": {"c": (0.1, 0.0), "multiplier": (1.0, 0.0)},
    "fox": {"gate.weight": (0.0, 0.02), "gate.bias": (0.0, 0.0)},
    "cable": {"gate.weight": (0.0, 0.02), "gate.bias": (0.0, 0.0)},
    "grape_a": {"a": (math.log(math.e - 1), 0.0), "u": (0.0, 1 / 8), "v": (0.0, 1 / 8)},
    "rel_bias": {"table.weight": (0.0, 0.02)},
    "shaw": {"of_key.weight": (0.0, math.sqrt(2 / (33 + 64)))},  # Glorot
    "sink_logits": {"a": (0.0, 0.0)},
    "ssmax": {"s": (0.43, 0.0)},
    "t5": {"table.weight": (0.0, 512**-0.5)},
    "transformer_xl": {"u": (0.0, 0.02), "v": (0.0, 0.02), "project.0.weight": (0.0, 0.02)},
    "pope": {"delta": (0.0, 0.0)},
    "cope": {"table.weight": (0.0, 0.0)},
}
WIDE = models.geometry(heads=8, head_dim=64, width=512, trained=256, target=512, table=256)


def defaults(name: str) -> dict[str, Any]:
    return {key: p.default for key, p in inspect.signature(scheme_class(name).__init__).parameters.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_the_published_ones(name: str) -> None:
    assert {key: defaults(name)[key] for key in PUBLISHED[name]} == PUBLISHED[name]
    assert scheme_class(name)(WIDE).record.name == name, "and they are enough to build it"


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("name", DRAWN)
def test_learned_numbers_start_as_published(name: str, causal: bool) -> None:
    scheme = scheme_class(name)(models.geometry(heads=8, head_dim=64, width=512, trained=256, causal=causal))
    numbers = dict(scheme.named_parameters())
    with torch.no_grad():
        for number in numbers.values():
            number.fill_(7.0)  # control: what is not drawn anew stands out
    torch.manual_seed(0)
    scheme.reset_parameters()
    for key, (mean, deviation) in DRAWN[name].items():
        drawn = numbers[key].detach().double()
        assert abs(float(drawn.mean()) - mean) <= 5 * deviation / math.sqrt(drawn.numel()) + 1e-7
        assert float(drawn.std(correction=0)) == pytest.approx(deviation, rel=0.25, abs=1e-7)
