"""Where a number comes from: each step between a model's logits and a row of a report, against its definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.log_probs import token_scores
from hf_posenc.eval.lm.spans import passes
from hf_posenc.eval.results.comparison import Comparison, rows_by_cell
from hf_posenc.eval.results.rows import Row, rows_of
from hf_posenc.eval.results.store import Record
from hf_posenc.eval.tasks.base import (
    perplexity,
)
from hf_posenc.eval.tasks.documents import DocsTask
from hf_posenc.eval.tasks.retrieval import opened
from hf_posenc.eval.tasks.sweep import Sweep
from hf_posenc.eval.texts.haystack import listed
from hf_posenc.eval.texts.needles import Niah

from .conftest import TRAINED


def exact(model: Any, ids: list[int], scored: int) -> torch.Tensor:
    """Log-probabilities of all words at the last ``scored`` places, float64."""
    return model(torch.tensor([ids])).logits[0, -scored - 1 : -1].double().log_softmax(-1)


@torch.no_grad()
def test_greedy_means_every_token(llama, tokenizer) -> None:
    """Targets that a greedy decoder writes, and the same with one token that it does not, at each place."""
    context = "def bisect(a, x):\n    lo = 0"
    ids = tokenizer(context)["input_ids"]
    written = llama.generate(
        torch.tensor([ids]), max_new_tokens=3, min_new_tokens=3, do_sample=False, attention_mask=torch.ones(1, len(ids))
    )[0, len(ids) :].tolist()  # fmt: skip
    lm = PosEncLM(llama, tokenizer=tokenizer)
    ((score, greedy),) = lm._loglikelihood_tokens([(None, ids, written)])
    assert greedy
    assert score == pytest.approx(exact(llama, ids + written, 3)[range(3), written].sum().item(), rel=1e-5)
    for index in range(3):
        other = [*written[:index], (written[index] + 1) % 512, *written[index + 1 :]]
        ((score, greedy),) = lm._loglikelihood_tokens([(None, ids, other)])
        assert not greedy
        assert score == pytest.approx(exact(llama, ids + other, 3)[range(3), other].sum().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("held", [1 << 20, 3 * 50])
def test_scores_are_in_float32_whatever_the_logits_are(dtype: torch.dtype, held: int, monkeypatch) -> None:
    monkeypatch.setattr("hf_posenc.eval.lm.log_probs.HELD", held)
    logits = (5 * torch.randn(10, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    tokens = torch.arange(10)
    tokens[3] = logits[3].argmax()
    scores, greedy = token_scores(logits, tokens)
    expected = logits.double().log_softmax(-1)[range(10), tokens]
    assert scores.dtype == torch.float32
    assert (scores.double() - expected).abs().max() < 1e-5
    assert torch.equal(greedy, logits.argmax(-1) == tokens)
    rounded = logits.log_softmax(-1)[range(10), tokens].double()
    assert dtype == torch.float32 or (rounded - expected).abs().max() > 1e-4  # control
    head = torch.nn.Linear(50, 60, dtype=torch.float32)
    scores, _ = token_scores(logits.float(), tokens, head)
    expected = head(logits.float()).double().log_softmax(-1)[range(10), tokens]
    assert (scores.double() - expected).abs().max() < 1e-5


def test_one_pass_reaches_the_farthest_end_in_whatever_order() -> None:
    spans = [(0, 4, 8), (0, 1, 4), (2, 6, 8), (0, 2, 6)]
    one, other = passes([9], range(10, 20), spans, prefixes=True)
    assert one.tokens == (9, *range(10, 18))
    assert one.keep == 7
    assert dict(one.answers) == {0: slice(3, 7), 1: slice(0, 3), 3: slice(1, 5)}
    assert (other.tokens, other.keep, other.answers) == ((9, *range(12, 18)), 2, ((2, slice(0, 2)),))
    for each, (_, begin, end) in zip(passes([], range(10, 20), spans, prefixes=False), spans, strict=True):
        assert each.tokens[-1] == 10 + end - 1
        assert each.keep == end - begin


def test_perplexity_is_of_the_mean_loss() -> None:
    """And not a mean of perplexities, which one bad document rules."""
    assert perplexity([1.0, 3.0]) == pytest.approx(math.exp(2.0))
    results = {
        "results": {"t": {"nll_L8,none": 2.0, "nll_L8_stderr,none": 0.5, "ppl_L8,none": math.exp(2.0)}},
        "n-samples": {"t": {"original": 9, "effective": 3}},
    }
    loss, found = rows_of(results, scheme="s", model="m")
    assert (loss.stderr, loss.n, loss.length) == (0.5, 3, 8)
    assert found.stderr == pytest.approx(math.exp(2.0) * 0.5)  # d exp(x) = exp(x) dx
    found = rows_of({**results, "results": {"t": {"ppl_L8,none": 7.0}}}, scheme="s", model="m")
    assert [row.stderr for row in found] == [None]


def comparison(*rows: Row) -> Comparison:
    record = Record("k", "pi", "t", 8, "done", "", rows, 1.0, {})
    return Comparison({"model": "name", "schemes": [{"label": "pi"}]}, [record])


def row(metric: str, depth: float | None = None, task: str = "t", length: int = 8) -> Row:
    return Row("m", "s", task, length, depth, metric, 1.0, 0.1, 4)


def test_settings_of_a_comparison() -> None:
    found = comparison(row("nll"), row("acc"), row("acc", 0.5), row("part", 0.5), row("other"), row("ppl", task="u"))
    assert found.tasks() == ["t", "u"]
    assert found.metrics("t") == ["acc", "nll", "other"]  # the first stands for the task
    assert found.metrics("t", depth=True) == ["acc", "part"]
    assert found.metrics("u") == ["ppl"]
    assert {(r.model, r.scheme) for r in found.rows} == {("name", "pi")}
    assert found.reasons("done") == {("pi", ""): found.records}
    assert found.with_state("failed") == []
    placed = rows_by_cell(found.rows, "t", "acc")
    assert list(placed) == [("pi", 8)]
    assert placed["pi", 8].depth is None


def test_a_sweep_by_default() -> None:
    found = Sweep.of({"lengths": "512;256,512"})
    assert (found.lengths, found.longest) == ((256, 512), 512)
    assert (found.samples, found.keys, found.scored, found.seed) == (16, 8, 64, 0)
    assert found.depths == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert [DocsTask.Options.of({"docs": docs, "from_start": "no"}).docs for docs in (None, "a b,c", ["a", "b"])] == [
        (), ("a b,c",), ("a", "b")
    ]  # fmt: skip
    for nothing in ({}, {"lengths": []}, {"lengths": None}):
        with pytest.raises(TaskOptionOutOfRange, match="has no lengths"):
            Sweep.of(nothing)
    assert [Sweep.of({"lengths": given}).lengths for given in (8, "8", "[8, 9]", (9, 8, 8))] == [
        (8,), (8,), (8, 9), (8, 9)
    ]  # fmt: skip


def test_the_pinned_needle_has_its_index() -> None:
    for seed in range(12):
        for options in ({"queries": 3}, {"codes": 3}, {}, {"distractors": 4}):
            made = Niah(f"{seed}", 0.37, **options)
            depth, needle = made.needles[made.pinned]
            assert depth == 0.37
            assert made.answers[made.pinned] in needle
            assert sum(index == 0.37 for index, _ in made.needles) == 1
            order = [made.prompt(50).index(answer) for answer in made.answers]
            assert options.get("codes", 1) == 1 or order == sorted(order)  # values of one key come in the text's order
    assert len({Niah(f"{seed}", 0.37, queries=3).pinned for seed in range(12)}) == 3


def test_each_answer_follows_the_right_ones_before_it() -> None:
    assert opened(["a", "b", "c"]) == [("", " a"), (" a,", " b"), (" a, b,", " c")]
    assert [listed(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def test_random_positions_depend_on_the_sequence_alone(llama, tokenizer) -> None:
    """Two texts that drew the same positions would be one draw counted twice."""
    patch_model(llama, "randpos", target_length=2 * TRAINED, test="random")
    lm = PosEncLM(llama, tokenizer=tokenizer)

    def drawn(row: tuple[int, ...]) -> list[float]:
        with lm.seeded([row]):
            return torch.rand(3).tolist()

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert drawn((1, 2, 3)) == drawn((1, 2, 3))
    assert len({tuple(drawn(row)) for row in ((1, 2, 3), (1, 2, 4), (3, 2, 1), (1, 2))}) == 4
    assert torch.equal(torch.rand(3), expected)  # outside, as if none had been drawn
