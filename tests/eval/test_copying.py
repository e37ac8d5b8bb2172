"""Copying: prompts are as defined, a model that copies scores 1, and gains are differences of losses."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import LengthTooShort, TaskOptionOutOfRange
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.tasks.copying import induced

from .conftest import TRAINED, nats

LENGTHS = [64, 65, TRAINED]
DEPTHS = [0.0, 0.5, 1.0]
SMALL = {"lengths": LENGTHS, "samples": 3, "scored": 8, "depths": DEPTHS, "log_samples": True}


def test_copies_are_copies(llama, tokenizer) -> None:
    evaluation = evaluate(llama, tokenizer, tasks=["posenc_copy"], **SMALL)
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    for number, length in enumerate(LENGTHS):
        hits, exact = [], []
        for sample in evaluation.raw["samples"]["posenc_copy"]:
            _, ids, scored = sample["arguments"][number]
            half = length // 2
            assert (len(ids), scored) == (2 * half, 8)
            assert ids[:half] == ids[half:]
            assert ids[-8:] == sample["arguments"][-1][1][-8:]  # the same targets at every length
            assert not set(ids) & set(tokenizer.all_special_ids)
            guess = llama(torch.tensor([ids])).logits[0].argmax(-1)[-9:-1].tolist()
            hits.append(sum(a == b for a, b in zip(guess, ids[-8:], strict=True)) / 8)
            exact.append(float(guess == ids[-8:]))
        assert rows["acc", length].value == pytest.approx(sum(hits) / 3)
        assert rows["exact", length].value == sum(exact) / 3
        assert rows["acc", length].stderr is not None


def test_pairs_occur_once_at_their_depth(llama, tokenizer) -> None:
    evaluation = evaluate(llama, tokenizer, tasks=["posenc_induction"], **SMALL)
    cells = [(length, depth) for length in LENGTHS for depth in DEPTHS]
    for sample in evaluation.raw["samples"]["posenc_induction"]:
        last = sample["arguments"][0][1][-2:]
        for (length, depth), (_, ids, scored) in zip(cells, sample["arguments"], strict=True):
            assert (len(ids), scored) == (length, 1)
            assert ids[-2:] == last  # the same pair everywhere
            first, second = (i for i, token in enumerate(ids) if token == last[0])
            assert ids[first + 1] == last[1]
            assert second == length - 2
            assert first == round(depth * (length - 5))
    assert {(r.length, r.depth) for r in evaluation.rows} == {*cells, *((length, None) for length in LENGTHS)}


def test_a_model_that_looks_back_scores_one(llama, tokenizer, monkeypatch) -> None:
    """Control for the accuracies of random models, which are near 0: an oracle in the place of the model."""

    def oracle(self, keep):
        for row in keep:
            after = {}
            logits = torch.zeros(len(row), len(tokenizer))
            for index, token in enumerate(row):
                half = (len(row) + 1) // 2
                guess = row[index + 1 - half] if self.copies and index + 1 >= half else after.get(token, 0)
                logits[index, guess] = 50.0
                if index:
                    after.setdefault(row[index - 1], token)
            yield row, logits[-keep[row] :], torch.nn.Identity()

    monkeypatch.setattr(PosEncLM, "states", oracle)
    for task in ("posenc_copy", "posenc_induction"):
        monkeypatch.setattr(PosEncLM, "copies", task == "posenc_copy", raising=False)
        evaluation = evaluate(llama, tokenizer, tasks=[task], **SMALL)
        assert {r.value for r in evaluation.rows if r.metric in ("acc", "exact")} == {1.0}
        assert max(r.value for r in evaluation.rows if r.metric == "nll") < 1e-6


def test_lengths_without_room_raise(llama, tokenizer) -> None:
    with pytest.raises(LengthTooShort):
        evaluate(llama, tokenizer, tasks=["posenc_induction"], **SMALL | {"lengths": [4]})
    with pytest.raises(LengthTooShort):
        evaluate(llama, tokenizer, tasks=["posenc_copy"], **SMALL | {"lengths": [12]})
    assert induced(range(10, 20), (1, 2), 1.0, 6) == [18, 1, 2, 19, 1, 2]


GAIN_LENGTHS = [48, 65, TRAINED]
SCORED = 12
GAIN = {"tasks": ["posenc_copy_gain"], "lengths": GAIN_LENGTHS, "samples": 4, "scored": SCORED, "log_samples": True}


@pytest.mark.slow
def test_gains_are_differences_of_losses(llama, framed_tokenizer) -> None:
    evaluation = evaluate(llama, framed_tokenizer, **GAIN)
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    found: dict[tuple[str, int], list[float]] = {}
    for sample in evaluation.raw["samples"]["posenc_copy_gain"]:
        target = sample["doc"]["ids"][-SCORED:]
        for number, length in enumerate(GAIN_LENGTHS):
            requests = sample["arguments"][3 * number : 3 * number + 3]
            front = framed_tokenizer("").input_ids[:1]
            assert {len(row) for _, row, _ in requests} == {length}
            assert [(row[: len(front)], row[-SCORED:], scored) for _, row, scored in requests] == [
                (front, target, SCORED)  # the same at every length
            ] * 3
            repeated, other, none = (row[len(front) :] for _, row, _ in requests)
            assert repeated[:SCORED] == target
            assert other[:SCORED] != target
            assert repeated[SCORED:] == other[SCORED:] == none[SCORED:]
            assert none == sample["doc"]["ids"][-len(none) :]
            a, b, c = (float(nats(llama, row, SCORED).mean()) for _, row, _ in requests)
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
    gains = {(r.metric, r.length): r.value for r in evaluate(llama, tokenizer, **GAIN).rows}
    assert min(gains["gain", length] for length in GAIN_LENGTHS) > 1.0
    assert min(gains["gain_over_other", length] for length in GAIN_LENGTHS) > 1.0
    monkeypatch.setattr(PosEncLM, "states", answers(False))
    gains = {r.value for r in evaluate(llama, tokenizer, **GAIN).rows if r.metric != "nll"}
    assert max(map(abs, gains)) < 1e-6


def test_what_has_no_room_or_no_control_is_refused(llama, tokenizer) -> None:
    with pytest.raises(LengthTooShort, match="no room for context"):
        evaluate(llama, tokenizer, **GAIN | {"lengths": [2 * SCORED - 2]})
    with pytest.raises(TaskOptionOutOfRange, match="2 samples or more"):
        evaluate(llama, tokenizer, **GAIN | {"samples": 1})
