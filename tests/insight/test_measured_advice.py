"""Recommendations ordered by what was measured: against one evaluation of each line, made as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_posenc import advise, from_pretrained
from hf_posenc.cli.app import app
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.errors import BadComparison
from hf_posenc.eval import evaluate
from hf_posenc.insight.advise import Advice, measured_advice
from hf_posenc.starters.loading import starter_path

STARTER, TRAINED, TARGET, SAMPLES = "starter:llama", 256, 512, 3


@pytest.fixture(scope="module")
def measured() -> Advice:
    return measured_advice(advise(STARTER, TARGET), STARTER, samples=SAMPLES)


@pytest.mark.slow
def test_every_recommendation_has_the_loss_of_its_own_line(measured: Advice) -> None:
    from transformers import AutoTokenizer

    folder = starter_path("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for one in measured.zero_shot[:2]:
        model = from_pretrained(folder, scheme=one.scheme, dtype="float32", **one.lengths, **one.options)
        found = evaluate(model, tokenizer, tasks=["posenc_ppl"], lengths=[TRAINED, TARGET], samples=SAMPLES)
        loss = next(row for row in found.rows if (row.metric, row.length) == ("nll", TARGET))
        assert one.measured == pytest.approx((loss.value, loss.stderr), rel=1e-6)


def test_they_are_ordered_by_loss_and_those_that_evict_come_last(measured: Advice) -> None:
    ranks = [(one.kept < TARGET, one.measured[0]) for one in measured.zero_shot if one.measured]
    assert len(ranks) == len(measured.zero_shot)
    assert ranks == sorted(ranks)
    assert {evicts for evicts, _ in ranks} == {True, False}


def test_the_order_was_another_before(measured: Advice) -> None:
    """A control: the published order is not the measured one here, so that sorting had something to do."""
    before = [one.scheme for one in advise(STARTER, TARGET).zero_shot]
    assert sorted(before) == sorted(one.scheme for one in measured.zero_shot)
    assert before != [one.scheme for one in measured.zero_shot]


def test_the_text_says_what_was_measured(measured: Advice) -> None:
    assert measured.unpatched_loss is not None
    assert f"unpatched at 256: loss {measured.unpatched_loss[0]:.3f}" in str(measured)
    first = measured.zero_shot[0]
    assert first.measured is not None
    assert f"1  {first.scheme} (loss {first.measured[0]:.3f} ±" in str(measured)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(BadComparison, match="no zero-shot recommendation"):
        measured_advice(advise(STARTER, TRAINED // 2), STARTER)


@pytest.mark.parametrize("words", [["--samples", "4"], ["--out", "folder"]])
def test_an_option_of_measuring_alone_is_refused(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["advise", "--model", STARTER, "--target-length", "512", *words])
    assert isinstance(result.exception, BadArgument)


@pytest.mark.slow
def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """Otherwise the published order would be shown as if it were the measured one."""
    (tmp_path / "short.txt").write_text("Hello there.")
    with pytest.raises(BadComparison, match=r"None of the recommendations .* could be measured\. .*longer text"):
        measured_advice(advise(STARTER, TARGET), STARTER, samples=SAMPLES, text=tmp_path / "short.txt")
