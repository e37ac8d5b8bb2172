"""Options chosen on a development text: the best of the grid there, and measured on another text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_posenc.errors import BadComparison
from hf_posenc.eval import compare
from hf_posenc.eval.comparison.tune import candidates, check_apart, grid_of
from hf_posenc.eval.report.remarks import options_chosen
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.texts.measured_text import measured_text, module_text
from hf_posenc.schemes.entry import Entry, entries_of

from .conftest import TRAINED

pytest.importorskip("matplotlib")


def eight_times(seed: int = 0) -> Any:
    """As on a model that was trained on 256 tokens."""
    return SimpleNamespace(
        settings=SimpleNamespace(seed=seed), lengths=lambda entry: SimpleNamespace(factor=8.0, trained=256)
    )


FITTING = eight_times()
SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "lengths": [2 * TRAINED], "tasks": ["posenc_ppl"]}


@pytest.fixture
def texts(tmp_path) -> tuple[Path, Path]:
    measured, development = tmp_path / "measured.py", tmp_path / "development.py"
    measured.write_text(module_text("argparse"))
    development.write_text(module_text("difflib"))
    return measured, development


def test_the_grid_is_made_of_the_options_left_open() -> None:
    (entry,) = entries_of("self_extend")
    assert grid_of(entry, 8.0, 256) == {"group": [12, 16, 32], "window": [32, 64, 128, 192]}
    assert candidates(FITTING, entry)[0] == entry  # as it is without tuning
    assert len(candidates(FITTING, entry)) == 1 + 3 * 4
    in_bands = [(12,) * 8, (16,) * 8, (32,) * 8, (*(12,) * 4, *(32,) * 4), (*(32,) * 4, *(12,) * 4)]
    assert grid_of(Entry("dpe", "dpe"), 8.0, 256) == {"groups": in_bands, "window": [32, 64, 128, 192]}
    (fixed,) = entries_of("self_extend:window=100")
    assert grid_of(fixed, 8.0, 256) == {"group": [12, 16, 32]}
    assert candidates(FITTING, Entry("unpatched", None)) == []
    assert grid_of(Entry("yarn", "yarn"), 8.0, 256) == {"factor": [8.0, 10.0, 12.0, 16.0]}
    assert grid_of(Entry("yarn", "yarn", {"factor": 4}), 8.0, 256) == {}
    assert grid_of(Entry("dynamic_ntk", "dynamic_ntk"), 8.0, 256) == {"multiplier": [2.0, 4.0, 8.0, 16.0]}


def test_a_budget_draws_from_a_finer_grid() -> None:
    (entry,) = entries_of("self_extend")
    drawn = candidates(FITTING, entry, 6)
    assert drawn[0] == entry
    assert len({json.dumps(one.options) for one in drawn}) == 6
    assert candidates(FITTING, entry, 6) == drawn
    assert candidates(eight_times(seed=1), entry, 6) != drawn
    assert len(candidates(FITTING, entry, 1000)) == 1 + 5 * 7
    assert candidates(FITTING, entry, 1) == [entry]
    apart = [one.options["groups"] for one in candidates(FITTING, Entry("dpe", "dpe"), 1000)[1:]]
    assert len(set(apart)) == 1 + 8 * 4
    assert (16, 16, 2, *(16,) * 5) in apart


def test_a_report_names_every_tuned_scheme() -> None:
    chosen = {"yarn": {}, "rerope": {"512": {"window": 64}}, "unpatched": {}}
    schemes = [{"label": name, "scheme": name.replace("unpatched", ""), "chosen": one} for name, one in chosen.items()]
    tuned = list(options_chosen(Comparison({"schemes": schemes, "tuned": {"text": "other.txt"}}, [])))
    assert [sentence.partition(":")[0] for sentence in tuned] == ["rerope", "yarn"]
    assert all("other.txt" in sentence for sentence in tuned)
    assert len(list(options_chosen(Comparison({"schemes": schemes}, [])))) == 1  # control: without tuning, none is kept


@pytest.mark.slow
def test_the_best_of_the_grid_is_chosen(llama, tokenizer, texts, tmp_path) -> None:
    measured, development = texts
    given = {"tokenizer": tokenizer, **SMALL}
    found = compare(llama, "rerope,unpatched", text=measured, dev_text=development, out=tmp_path / "tuned", **given)
    windows = [TRAINED // 8, TRAINED // 4, TRAINED // 2, 3 * TRAINED // 4]
    words = ",".join(f"rerope:window={window}" for window in windows)
    losses = {  # measured apart from the tuning
        row.scheme: row.value
        for row in compare(llama, words, text=development, out=tmp_path / "apart", **given).rows
        if row.metric == "nll"
    }
    best = min(losses, key=losses.__getitem__)
    window = found.about["schemes"][0]["chosen"][str(2 * TRAINED)]["window"]
    assert best == f"rerope:window={window}"
    assert len(set(losses.values())) == 4  # control: the window matters
    alone = compare(llama, best, text=measured, out=tmp_path / "alone", **given).rows
    assert [r.value for r in found.rows if r.scheme == "rerope"] == [r.value for r in alone]
    tried = found.about["tuned"]["options"][0]["tried"]
    assert [one["nll"] for one in tried[1:]] == list(losses.values())
    stored = json.loads((tmp_path / "tuned" / "results.json").read_text(encoding="utf-8"))
    assert stored["about"]["tuned"]["text"] == str(development)
    report = (tmp_path / "tuned" / "results.md").read_text(encoding="utf-8")
    assert f"window {window}" in report
    assert "development.py" in report


@pytest.mark.slow
def test_tuning_again_measures_nothing(llama, tokenizer, texts, tmp_path, monkeypatch) -> None:
    from hf_posenc.eval.comparison import measure

    measured, development = texts
    given = {"tokenizer": tokenizer, "text": measured, "dev_text": development, "out": tmp_path / "out", **SMALL}
    first = compare(llama, "self_extend,pi", **given)
    monkeypatch.setattr(measure, "evaluation_of", lambda *_: pytest.fail("measured again"))
    assert compare(llama, "self_extend,pi", **given).to_dict() == first.to_dict()


def test_one_factor_has_one_choice(llama, tokenizer, texts, tmp_path) -> None:
    measured, development = texts
    given = SMALL | {"lengths": [TRAINED, 2 * TRAINED], "longest": 4 * TRAINED}
    found = compare(
        llama, "rerope", tokenizer=tokenizer, text=measured, dev_text=development, out=tmp_path / "out", **given
    )
    chosen = found.about["schemes"][0]["chosen"]
    assert [one["length"] for one in found.about["tuned"]["options"]] == [4 * TRAINED]
    assert chosen
    assert len({json.dumps(options) for options in chosen.values()}) == 1


def test_the_measured_text_is_refused(llama, tokenizer, texts, tmp_path) -> None:
    measured, development = texts
    with pytest.raises(BadComparison, match="shares a document"):
        compare(llama, "rerope", tokenizer=tokenizer, text=measured, dev_text=measured, out=tmp_path / "out", **SMALL)
    part = tmp_path / "part.py"
    part.write_text(measured.read_text()[5000:9000])
    with pytest.raises(BadComparison, match="of the lines"):
        check_apart(measured_text(measured), measured_text(part))
    with pytest.raises(BadComparison, match="of the lines"):  # an excerpt is few of the lines of its book
        check_apart(measured_text(part), measured_text(measured))
    both = tmp_path / "both"
    both.mkdir()
    (both / "one.txt").write_text(measured.read_text())
    (both / "two.txt").write_text(development.read_text())
    with pytest.raises(BadComparison, match="shares a document"):
        check_apart(measured_text(measured), measured_text(both))
    check_apart(measured_text(measured), measured_text(development))  # control
    with pytest.raises(BadComparison, match="lines"):
        check_apart(measured_text(None), measured_text(measured))
