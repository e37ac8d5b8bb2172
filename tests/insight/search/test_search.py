"""A search as a whole: chosen on one text and judged on another, resumable, and refused in words."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TokenizersBackend

from hf_posenc import patch_model, unpatch_model
from hf_posenc.errors import BadComparison, BudgetTooSmall, CheckpointMismatch, LengthContradiction
from hf_posenc.eval import evaluate
from hf_posenc.eval.comparison import measure as cells
from hf_posenc.eval.errors import CannotCut, TextTooShort
from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.texts import windows
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.insight.search import SearchResult, search
from hf_posenc.insight.search.run import read_plan
from hf_posenc.insight.search.steps import WARM
from hf_posenc.insight.search.two_texts import two_texts
from hf_posenc.insight.search.windows_loss import WindowLoss
from hf_posenc.texts import Document

pytest.importorskip("matplotlib")
Run = Callable[..., SearchResult]


def without_times(result: SearchResult) -> dict[str, Any]:
    """A result without what two runs may differ in."""
    found = json.loads(json.dumps(result.to_dict()))
    for name in ("seconds", "command"):
        found["about"].pop(name)
    for name in ("pace", "fixed", "setup", "overhead"):
        found["about"]["plan"].pop(name)
    for trial in found["trials"]:
        trial.pop("seconds")
    return found


def test_the_files_hold_all_that_was_tried(few: Run, tmp_path: Path, model: Any, tokenizer: Any, texts: Any) -> None:
    result = few(tmp_path, compare=["--text", str(texts[1])])
    labels = {trial.label for trial in result.trials}
    assert labels == {"rerope", "pi", "window", "rerope:window=8", "rerope:window=16", "window:size=16"}
    twin = next(trial for trial in result.trials if trial.label == "rerope:window=16")
    assert (twin.state, twin.note) == ("same", "rerope")  # half of the trained length, which is the default
    assert json.loads((tmp_path / "search.json").read_text())["trials"] == result.to_dict()["trials"]
    rows = list(csv.DictReader((tmp_path / "search.csv").read_text().splitlines()))
    assert len(rows) == len(result.trials)
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")
    assert result.patch in str(result)
    assert "surely better than the choice" in str(result)

    # The printed call gives the held-out loss, measured with the options of the printed command.
    own, words = result.of(result.chosen.label), shlex.split(result.command)[2:]
    assert own is not None
    printed = dict(zip(words[::2], words[1::2], strict=True))
    patch_model(model, result.chosen.scheme, **result.options)
    try:
        found = evaluate(
            model, tokenizer, tasks=[printed["--tasks"]], lengths=[int(printed["--lengths"])], text=printed["--text"],
            samples=int(printed["--samples"]), scored=int(printed["--scored"]), seed=int(printed["--seed"]),
        )  # fmt: skip
    finally:
        unpatch_model(model)
    assert own.loss == pytest.approx(next(row.value for row in found.rows if row.metric == "nll"), rel=1e-6)


def test_a_killed_search_goes_on_and_a_repeated_one_measures_nothing(
    few: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = few(tmp_path / "whole")
    measure_cell, count = cells.measure_cell, 0

    def killed(*args: Any, **given: Any) -> Any:
        nonlocal count
        count += 1
        if count in (4, 8, 14):  # in the first look, and in two rungs
            raise KeyboardInterrupt
        return measure_cell(*args, **given)

    monkeypatch.setattr(cells, "measure_cell", killed)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            few(tmp_path / "killed")
        assert not (tmp_path / "killed" / "search.json").exists()
    resumed = few(tmp_path / "killed")
    assert without_times(resumed) == without_times(whole)
    monkeypatch.setattr(cells, "measure_cell", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr(TokenizersBackend, "_encode_plus", lambda *_, **__: pytest.fail("tokenised again"))
    windows._tokenized_documents.cache_clear()
    windows._tokenized.cache_clear()
    assert few(tmp_path / "killed").to_dict() == resumed.to_dict()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"plan": 3}', '{"plan": {"arms": [], "rungs": [], "other": 1}}'])
def test_a_damaged_plan_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match=r"plan\.json cannot be read.+delete it to plan anew"):
        read_plan(file)


def test_windows_that_cannot_be_measured_leave_the_choice_to_earlier_rungs(
    few: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = cells.evaluate

    def evaluate_few(*args: Any, samples: int, text: MeasuredText, **given: Any) -> Any:
        if samples not in (1, 2, 8) and "own" in str(text.label):
            raise CannotCut("This text cannot be cut.")
        return evaluated(*args, samples=samples, text=text, **given)

    monkeypatch.setattr(cells, "evaluate", evaluate_few)
    result = few(tmp_path)
    assert "No arm could be measured on rung 2" in str(result)
    assert "This text cannot be cut." in str(result)
    assert {trial.windows for trial in result.trials} == {2}
    chosen = next(trial for trial in result.trials if trial.label == result.chosen.label)
    assert chosen.state == "measured"


def test_the_choice_never_sees_the_held_out_text(few: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted losses: `window` is best on one text alone, `rerope:window=8` on the other alone."""
    best = {"own.py": "rerope:window=8", "other.py": "window"}

    def planted(self: WindowLoss, cell: Any, request: Any, text: Any) -> Record:
        def noise(window: int) -> float:
            return 0.01 * (window * len(cell.entry.label) % 5)

        loss = (1.0 if cell.entry.label == best[Path(text.label).name] else 2.0) + number_of(cell.entry.label)
        scores = [
            DocumentScore(
                self.task, f"{window}", f"{window}", cell.length, None, "nll", loss + 0.1 * window + noise(window)
            )
            for window in range(request.measure["samples"])
        ]
        documents = [score.to_dict() for score in scores]
        return Record(cell.key, cell.entry.label, self.task, cell.length, "done", "", [], 0.1, {}, documents)

    monkeypatch.setattr(WindowLoss, "measured", planted)
    first = few(tmp_path)
    assert first.chosen.label == "rerope:window=8"
    losses = {line.label: line.loss for line in first.held_out}
    assert losses["window"] < losses["rerope:window=8"] - 0.9  # the control had something to be tempted by
    difference = first.of("window").difference
    assert difference is not None
    assert difference.verdict == "worse"
    own, other = first.about["text"], first.about["eval_text"]
    swapped = few(tmp_path / "swapped", text=Path(other), eval_text=Path(own))
    assert swapped.chosen.label == "window"


@pytest.mark.parametrize("slow", ["in the first rung", "after it"])
def test_a_slower_machine_leaves_out_rungs_and_windows_but_no_default(
    few: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """Planted times: the machine becomes a thousand times slower, with the first arm that has options, or later."""

    def planted(self: WindowLoss, cell: Any, request: Any, text: Any) -> Record:
        windows, rung = request.measure["samples"], request.measure["seed"]
        loss = 2.0 + number_of(cell.entry.label)
        scores = [DocumentScore(self.task, f"{n}", f"{n}", cell.length, None, "nll", loss) for n in range(windows)]
        fast = rung in (0, WARM) and not (slow == "in the first rung" and ":" in cell.entry.label)
        seconds = 0.1 * windows * (1 if fast else 1000)
        documents = [score.to_dict() for score in scores]
        return Record(cell.key, cell.entry.label, self.task, cell.length, "done", "", [], seconds, {}, documents)

    monkeypatch.setattr(WindowLoss, "measured", planted)
    result = few(tmp_path, budget=60)
    assert result.about["plan"]["held_out"] > 8
    assert {line.label for line in result.held_out} >= {"rerope", "pi", "window", "unpatched", "unpatched, 32 tokens"}
    assert {line.windows for line in result.held_out} == {8}
    assert f"8 windows instead of {result.about['plan']['held_out']}" in str(result)
    assert "the last rungs were left out" in str(result)
    assert ("Only arms with default options were tried" in str(result)) == (slow == "in the first rung")


def number_of(label: str) -> float:
    """A small number of its own for each arm, so that none are taken for the same."""
    return sum(ord(letter) * place for place, letter in enumerate(label, 1)) * 1e-6


def test_the_last_third_of_a_single_text_is_set_aside(tokenizer: Any) -> None:
    documents = [Document(name, f"{name} {number}\n" * 10) for number, name in enumerate(("one", "two", "three"))]
    own, held_out, which = two_texts(MeasuredText(tuple(documents), "all", "digest"), None, tokenizer)
    assert "set aside" in which
    joined = "".join(str(document.content) for document in (*own.documents, *held_out.documents))
    assert joined == "".join(str(document.content) for document in documents)  # nothing is in both, nothing is lost
    assert sum(len(document.content) for document in held_out.documents) == pytest.approx(len(joined) / 3, rel=0.1)
    assert all(str(document.content).endswith("\n") for document in own.documents)  # cut at the end of a line
    assert own.digest != held_out.digest
    assert (own.label, held_out.label) == ("all (its first two thirds)", "all (its last third)")


def test_a_text_of_copies_is_not_parted(tokenizer: Any) -> None:
    """Its last third is what the choice was made on."""
    story = "".join(f"Line {number} of a story that is told three times over.\n" for number in range(30))
    copies = MeasuredText(tuple(Document(f"{number}", story) for number in range(3)), "story.txt", "digest")
    with pytest.raises(BadComparison, match=r"last third of story.txt shares a document .* --eval-text"):
        two_texts(copies, None, tokenizer)
    with pytest.raises(BadComparison, match="of the lines"):
        two_texts(MeasuredText((Document("all", story * 3),), "story.txt", "digest"), None, tokenizer)


def test_what_cannot_be_searched_is_refused(
    few: Run, tmp_path: Path, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "measure_cell", lambda *_, **__: pytest.fail("measured"))
    short = tmp_path / "short.txt"
    short.write_text("A text of a few words only.\n" * 3, encoding="utf-8")
    with pytest.raises(TextTooShort, match="needs 8 windows of 64 tokens"):
        few(tmp_path / "out", text=short)
    with pytest.raises(TextTooShort, match="held-out text"):
        few(tmp_path / "out", eval_text=short)
    with pytest.raises(TextTooShort, match=r"own\.py, .*other\.py \(its first two thirds\), has"):
        few(tmp_path / "out", text=list(texts), eval_text=None, target=150)
    with pytest.raises(LengthContradiction, match="nothing to extend"):
        few(tmp_path / "out", target=32)
    with pytest.raises(BadComparison, match="--eval-text"):
        few(tmp_path / "out", eval_text=texts[0])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("starter", ["gpt2", "bert"])
def test_a_model_with_a_position_table_is_refused(starter: str, tmp_path: Path) -> None:
    with pytest.raises(BadComparison, match="`hf-posenc advise` names those that need training"):
        search(f"starter:{starter}", 512, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_budget_that_is_too_small_is_refused(few: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []
    measure_cell = cells.measure_cell

    def counted(lm: Any, cell: Any, *rest: Any) -> Any:
        labels.append(cell.entry.label)
        return measure_cell(lm, cell, *rest)

    monkeypatch.setattr(cells, "measure_cell", counted)
    with pytest.raises(BudgetTooSmall, match=r"needs some .* Pass --budget"):
        few(tmp_path, budget=0.2)
    assert set(labels) == {"unpatched"}  # the speed measurement
