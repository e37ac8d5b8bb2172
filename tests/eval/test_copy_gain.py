"""Copy gain: prompts are as defined, and the gains are differences of losses of the plain model in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import LengthTooShort, TaskOptionOutOfRange
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import TRAINED

LENGTHS = [48, 65, TRAINED]
SCORED = 12
SMALL = {"tasks": ["posenc_copy_gain"], "lengths": LENGTHS, "samples": 4, "scored": SCORED, "log_samples": True}


@torch.no_grad()
def loss_of(model, ids: list[int]) -> float:
    """Mean loss of the last tokens, nats/token, from plain logits in float64."""
    logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    targets = range(len(ids) - SCORED, len(ids))
    return float(-sum(logits[index - 1, ids[index]] for index in targets) / SCORED)


@pytest.mark.slow
def test_gains_are_differences_of_losses(llama, framed_tokenizer) -> None:
    evaluation = evaluate(llama, framed_tokenizer, **SMALL)
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    found: dict[tuple[str, int], list[float]] = {}
    for sample in evaluation.raw["samples"]["posenc_copy_gain"]:
        target = sample["arguments"][0][2][-SCORED:]
        for number, length in enumerate(LENGTHS):
            requests = sample["arguments"][3 * number : 3 * number + 3]
            repeated, other, none = (request[2] for request in requests)
            front = requests[0][1]
            assert {len(front) + len(row) for row in (repeated, other, none)} == {length}
            assert [row[-SCORED:] for row in (repeated, other, none)] == [target] * 3  # the same at every length
            assert repeated[:SCORED] == target
            assert other[:SCORED] != target
            assert repeated[SCORED:] == other[SCORED:] == none[SCORED:]
            assert none == sample["doc"]["ids"][-len(none) :]
            a, b, c = (loss_of(llama, [*front, *row]) for row in (repeated, other, none))
            for metric, value in (("gain", c - a), ("gain_over_other", b - a), ("nll", a)):
                found.setdefault((metric, length), []).append(value)
    assert rows.keys() == found.keys()
    for cell, values in found.items():
        assert rows[cell].value == pytest.approx(sum(values) / 4, abs=1e-5)
        spread = torch.tensor(values).std() / 2  # paired: over the differences of documents
        assert rows[cell].stderr == pytest.approx(float(spread), rel=1e-3)


def test_a_model_that_copies_gains_and_one_that_does_not_gains_nothing(llama, tokenizer, monkeypatch) -> None:
    """Controls: an oracle that repeats what followed the last two tokens before, and one that guesses evenly."""

    def answers(copies: bool):
        def states(self, keep):
            for row in keep:
                logits = torch.zeros(len(row), len(tokenizer))
                after = {}
                for index, pair in enumerate(pairwise(row), 1):
                    if copies and pair in after:
                        logits[index, after[pair]] = 20.0
                    if index + 1 < len(row):
                        after.setdefault(pair, row[index + 1])
                yield row, logits[-keep[row] :], torch.nn.Identity()

        return states

    monkeypatch.setattr(PosEncLM, "states", answers(True))
    gains = {(r.metric, r.length): r.value for r in evaluate(llama, tokenizer, **SMALL).rows}
    assert min(gains["gain", length] for length in LENGTHS) > 1.0
    assert min(gains["gain_over_other", length] for length in LENGTHS) > 1.0
    monkeypatch.setattr(PosEncLM, "states", answers(False))
    gains = {r.value for r in evaluate(llama, tokenizer, **SMALL).rows if r.metric != "nll"}
    assert max(map(abs, gains)) < 1e-6


def test_what_has_no_room_or_no_control_is_refused(llama, tokenizer) -> None:
    with pytest.raises(LengthTooShort, match="no room for context"):
        evaluate(llama, tokenizer, **SMALL | {"lengths": [2 * SCORED - 2]})
    with pytest.raises(TaskOptionOutOfRange, match="2 samples or more"):
        evaluate(llama, tokenizer, **SMALL | {"samples": 1})
