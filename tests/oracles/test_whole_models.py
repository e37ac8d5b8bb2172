"""Whole patched models against the same models computed from the definitions, at four times their trained length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model

from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED, WIDTH
from .naive import Positions, rope

FACTOR = 4
LENGTH = FACTOR * TRAINED
LIMIT = 1e-4  # logits of deviation 1 in float32 behind two layers of sharp softmax; measured up to 1e-5


@dataclass(frozen=True)
class Case:
    """A scheme, and what it should do to a text that has no positions yet."""

    scheme: str
    does: Callable[[Positions], Positions]
    options: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ("llama", "gpt2", "bert")

    def __str__(self) -> str:
        return self.scheme + "".join(f",{name}={value}" for name, value in self.options.items())


def rotating(frequencies: Tensor, **more: Any) -> Callable[[Positions], Positions]:
    return lambda text: replace(text, frequencies=frequencies, **more)


def ntk_base(stretch: float) -> float:
    return 10_000.0 * stretch ** (HEAD_DIM / (HEAD_DIM - 2))


def by_row(multiplier: float = 1.0, step: int = 1) -> Callable[[Positions], Positions]:
    """Dynamic NTK, one row of frequencies a query."""

    def of(text: Positions) -> Positions:
        rows = []
        for i in range(LENGTH):
            length = TRAINED + math.ceil(max(0, i + 1 - TRAINED) / step) * step
            rows.append(rope(HEAD_DIM, ntk_base(multiplier * length / TRAINED - (multiplier - 1))))
        return replace(text, frequencies=torch.stack(rows))

    return of


def yarn_by_row(step: int = 1) -> Callable[[Positions], Positions]:
    """YaRN with the factor of every row's own length: frequencies and temperature."""
    places = [HEAD_DIM * math.log(TRAINED / (2 * math.pi * turns)) / (2 * math.log(10_000.0)) for turns in (32, 1)]
    low, high = max(math.floor(places[0]), 0), min(math.ceil(places[1]), HEAD_DIM - 1)
    slowed = ((torch.arange(HEAD_DIM // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)

    def of(text: Positions) -> Positions:
        lengths = [TRAINED + math.ceil(max(0, i + 1 - TRAINED) / step) * step for i in range(LENGTH)]
        rows = [rope(HEAD_DIM) * (1 - slowed + slowed * TRAINED / length) for length in lengths]
        scales = torch.tensor([(0.1 * math.log(length / TRAINED) + 1) ** 2 for length in lengths], dtype=torch.float64)
        return replace(text, frequencies=torch.stack(rows), row_scale=scales)

    return of


def remapped(distance_of: Callable[[int, int], float], **more: Any) -> Callable[[Positions], Positions]:
    moved = torch.tensor([[distance_of(i, j) for j in range(LENGTH)] for i in range(LENGTH)])
    return lambda text: replace(text, distance=moved, frequencies=rope(HEAD_DIM), **more)


def rerope(i: int, j: int) -> float:
    return min(i - j, TRAINED // 2)


def self_extend(group: int, window: int) -> Callable[[int, int], float]:
    return lambda i, j: i - j if i - j < window else i // group - j // group + window - window // group


def windowed(size: int, **more: Any) -> Callable[[Positions], Positions]:
    return lambda text: replace(text, seen=text.seen & (text.distance.abs() < size), **more)


def sinusoids(text: Positions) -> Positions:
    angles = torch.arange(LENGTH)[:, None] * rope(WIDTH)
    return replace(text, code=torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))


def alibi(text: Positions) -> Positions:
    return replace(text, bias=-naive.slopes(HEADS) * text.distance.abs())


LOG_N = torch.tensor([max(1.0, math.log(i + 1) / math.log(TRAINED)) for i in range(LENGTH)])
DECODERS = ("llama", "gpt2")
CASES = [
    Case("none", lambda text: text),
    Case("sinusoidal", sinusoids),
    Case("rope", rotating(rope(HEAD_DIM))),
    Case("rope", rotating(rope(HEAD_DIM, 500.0)), {"base": 500.0}),
    Case("pi", rotating(rope(HEAD_DIM) / FACTOR)),
    Case("ntk", rotating(rope(HEAD_DIM, ntk_base(FACTOR)))),
    Case("dynamic_ntk", by_row(), models=DECODERS),
    Case("dynamic_ntk", by_row(2.0), {"multiplier": 2.0}, DECODERS),
    Case("dynamic_ntk", by_row(1.0, 20), {"granularity": 20}, DECODERS),
    Case("dynamic_yarn", yarn_by_row(), models=DECODERS),
    Case("dynamic_yarn", yarn_by_row(20), {"granularity": 20}, DECODERS),
    Case("alibi", alibi),
    Case("rerope", remapped(rerope), models=("llama",)),
    Case("self_extend", remapped(self_extend(7, 16)), models=("llama",)),
    Case("self_extend", remapped(self_extend(10, 12)), {"group": 10, "window": 12}, ("llama",)),
    Case("window", windowed(TRAINED, frequencies=rope(HEAD_DIM)), models=("llama",)),
    Case("rope+window", windowed(20, frequencies=rope(HEAD_DIM)), {"size": 20}),
    Case("alibi+window", lambda text: windowed(20)(alibi(text)), {"size": 20}),
    Case("logn", rotating(rope(HEAD_DIM), row_scale=LOG_N), models=("llama",)),
    Case("none+logn", lambda text: replace(text, row_scale=LOG_N), models=DECODERS),
    Case("rope+self_extend", remapped(self_extend(7, 16)), models=DECODERS),
    Case("rerope+logn", remapped(rerope, row_scale=LOG_N), models=("llama",)),
    Case("pi+logn", rotating(rope(HEAD_DIM) / FACTOR, row_scale=LOG_N), models=DECODERS),
    Case("alibi+sinusoidal", lambda text: alibi(sinusoids(text))),
]
PAIRS = [pytest.param(case, model, id=f"{case}-{model}") for case in CASES for model in case.models]


@pytest.mark.parametrize(("case", "model"), PAIRS)
def test_equals_the_definition(case: Case, model: str) -> None:
    build, formula = models.MODELS[model]
    unpatched, ids = build(), models.text(LENGTH)
    text = naive.free(model, LENGTH)
    expected = formula(unpatched, ids, case.does(text))
    patched = models.logits(patch_model(build(), case.scheme, factor=FACTOR, **case.options), ids)
    assert (patched - expected).abs().max() <= LIMIT


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_definition_tells_schemes_apart(case: Case) -> None:
    """Control: neighbouring definitions are far away in these models, so equality above means something."""
    model = case.models[0]
    build, formula = models.MODELS[model]
    unpatched, ids, text = build(), models.text(LENGTH), naive.free(model, LENGTH)
    own = formula(unpatched, ids, case.does(text))
    others = [text, rotating(rope(HEAD_DIM))(text), rotating(rope(HEAD_DIM) / 3)(text)]
    deviations = [float((formula(unpatched, ids, other) - own).abs().max()) for other in others]
    # One of them may be the scheme itself.
    assert sum(deviation > 100 * LIMIT for deviation in deviations) >= 2, deviations
