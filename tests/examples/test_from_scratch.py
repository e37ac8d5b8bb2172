"""Findings that train tiny models: one start for every scheme, and claims that can fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch
from laboratory.task import TrainingBudget
from laboratory.tasks import TASKS
from laboratory.tiny import answers, tiny_model, train
from transformers import GPT2LMHeadModel
from verdict import Cells, Claim, Finding, Score, better, judge, verdict_on

from hf_posenc.schemes.entry import entries_of

SIZE: dict[str, Any] = {"trained": 4, "steps": 3, "batch": 2, "learning_rate": 1e-3, "width": 16, "layers": 1}
TASK = TASKS["copy"](TrainingBudget(**SIZE, asked=(4, 6)), 0)


def model_of(words: str) -> GPT2LMHeadModel:
    (entry,) = entries_of(words)
    return tiny_model(TASK, entry, seed=0)


@pytest.mark.parametrize("words", ["rope", "t5", "cope", "fox", "none+ssmax", "sinusoidal:scale=learned"])
def test_all_schemes_start_from_the_same_weights(words: str) -> None:
    stock = dict(model_of("unpatched").named_parameters())
    found = dict(model_of(words).named_parameters())
    assert {name for name in stock if "wpe" not in name} <= set(found)
    assert all(torch.equal(stock[name], found[name]) for name in stock if "wpe" not in name)


@pytest.mark.parametrize("words", ["none", "alibi", "fox"])
def test_all_schemes_read_the_same_rows_in_the_same_order(words: str) -> None:
    model, seen = model_of(words), list[torch.Tensor]()
    model.register_forward_pre_hook(lambda module, args, call: seen.append(call["input_ids"]), with_kwargs=True)
    train(model, TASK, 0)
    assert torch.equal(torch.cat(seen), torch.stack([TASK[index]["input_ids"] for index in range(6)]))


def test_random_positions_are_the_same_in_every_measurement() -> None:
    model, ids = model_of("rope+randpos").eval(), TASK.questions(6)["input_ids"]
    before = torch.get_rng_state()
    first = answers(model, ids)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert torch.equal(answers(model, ids), first)


PUBLISHED: dict[str, Callable[[str, float], float]] = {
    "alibi_extrapolation": lambda name, at: 2.0 + (at - 1) * ["alibi", "t5", "rope", "sinusoidal"].index(name),
    "relative_bias_order": lambda name, at: 2.0 + (at - 1) * ["fire", "kerple", "t5", "alibi"].index(name),
    "nope_length": lambda name, at: 1.0 if at == 1 else 0.8 / at if name == "none" else 0.1,
    "randomized_positions": lambda name, at: 0.95 if at == 1 or "randpos" in name else 0.2,
    "content_positions": lambda name, at: 0.3 if name == "rope" else 0.9,
}


def cells_of(finding: Finding, level: Callable[[str, float], float]) -> Cells:
    """Made-up cells with these levels, of twelve documents and the seeds of the finding."""

    def scores(name: str, at: float, seed: int) -> list[Score]:
        draw = random.Random(f"{name} {at} {seed}")
        return [Score(str(i), str(i), level(name, at) + draw.gauss(0.0, 0.002)) for i in range(12)]

    slots = product(finding.variants, finding.points, range(finding.full["seeds"]))
    return {slot: {metric.name: scores(*slot) for metric in finding.metrics} for slot in slots}


def swapped(claim: Claim) -> Claim:
    """An order the other way round."""
    return better(str(claim.second), claim.first, claim.at, metric=claim.metric)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_picture_is_reproduced_and_its_reverse_is_not(name: str) -> None:
    finding = import_module(name).FINDING
    cells = cells_of(finding, PUBLISHED[name])
    claims = [claim for claim in finding.claims if claim.second_at is None]
    needed = judge(finding.needs, finding.metrics, cells)
    assert verdict_on(judge(claims, finding.metrics, cells), needed) == "reproduced"
    assert verdict_on(judge([*map(swapped, claims)], finding.metrics, cells), needed) == "not reproduced"
