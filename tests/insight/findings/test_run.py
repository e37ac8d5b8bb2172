"""Running a finding: raw cells are kept, a rerun measures nothing, an edited setting is measured again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_posenc import from_pretrained, patch_model
from hf_posenc.errors import AlreadyPatched, CellMissing, OptionOutOfRange, UnknownFinding
from hf_posenc.eval.errors import StoreChanged
from hf_posenc.insight.findings import Budget, DocumentScore, Finding, Job, Order, reproduce, verdict_of
from hf_posenc.insight.findings.cells import Scores
from hf_posenc.insight.findings.claims import LOSS
from hf_posenc.texts import TextSource

MEASURED: list[tuple[str, int, float]] = []


def measure(job: Job) -> Iterator[tuple[float, Scores]]:
    """Losses that grow with the variant's setting; what is measured is noted."""
    for at in job.points:
        MEASURED.append((job.variant, job.seed, at))
        noise = range(job.options["documents"])
        yield (
            at,
            {
                "loss": [
                    DocumentScore(f"d{i}", f"d{i}", job.settings * at + 0.01 * (i % 3) * job.settings) for i in noise
                ]
            },
        )


FINDING = Finding(
    name="made_up",
    claim="One is better than two.",
    source="nobody",
    against="Two is better than one.",
    variants={"one": 1.0, "two": 2.0},
    points=(1.0, 2.0),
    axis="length",
    metrics=(LOSS,),
    claims=(Order("one", "two", 1.0), Order("one", "two", 2.0)),
    full=Budget(seeds=(0, 1), options={"documents": 12}),
    quick=Budget(options={"documents": 6}),
    measure=measure,
)


DRAWN = {"documents": 12, "samples": 6}


@pytest.fixture(autouse=True)
def nothing_measured() -> None:
    MEASURED.clear()


def files(folder: Path) -> dict[str, bytes]:
    """Content of the cells by name."""
    return {file.name: file.read_bytes() for file in (folder / "cells").iterdir()}


def test_result_has_everything_a_reader_needs(tmp_path: Path) -> None:
    result = reproduce(FINDING, out=tmp_path)
    assert result.verdict == "reproduced"
    assert len(MEASURED) == len(files(tmp_path)) == 2 * 2 * 2
    content = json.loads((tmp_path / "finding.json").read_text())
    assert {"claim", "source", "against", "verdict", "seeds", "cpu_seconds", "command", "settings"} <= set(content)
    assert content["seeds"] == [0, 1]
    assert [one["outcome"] for one in content["claims"]] == ["holds", "holds"]
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")


def test_a_rerun_measures_nothing_and_gives_the_same(tmp_path: Path) -> None:
    first = reproduce(FINDING, out=tmp_path)
    before = files(tmp_path), (tmp_path / "finding.json").read_bytes()
    MEASURED.clear()
    again = reproduce(FINDING, out=tmp_path)
    assert MEASURED == []
    assert again.judged == first.judged
    assert (files(tmp_path), (tmp_path / "finding.json").read_bytes()) == before


def test_the_verdict_follows_from_the_files_alone(tmp_path: Path) -> None:
    swapped = replace(FINDING, claims=tuple(Order("two", "one", claim.at) for claim in FINDING.claims))
    for finding, verdict in ((FINDING, "reproduced"), (swapped, "not reproduced")):
        result = reproduce(finding, out=tmp_path)
        MEASURED.clear()
        assert verdict_of(tmp_path) == (verdict, list(result.judged))
        assert MEASURED == []


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = reproduce(FINDING, out=tmp_path / "whole")
    stopping = replace(FINDING, measure=stop_once)
    with pytest.raises(KeyboardInterrupt):
        reproduce(stopping, out=tmp_path / "parts")
    kept = files(tmp_path / "parts")
    assert 0 < len(kept) < 8
    MEASURED.clear()
    assert reproduce(stopping, out=tmp_path / "parts").judged == whole.judged
    assert len(MEASURED) == 8 - len(kept)


STOPS = [("two", 0, 2.0)]


def stop_once(job: Job) -> Iterator[tuple[float, Scores]]:
    """`measure`, interrupted once."""
    for at, scores in measure(job):
        if STOPS and (job.variant, job.seed, at) == STOPS[0]:
            STOPS.clear()
            raise KeyboardInterrupt
        yield at, scores


@pytest.mark.parametrize(
    "edit", [{"variants": {"one": 1.0, "two": 3.0}}, {"full": Budget(seeds=(0, 1), options={"documents": 13})}]
)
def test_an_edited_setting_is_measured_again(tmp_path: Path, edit: dict[str, Any]) -> None:
    reproduce(FINDING, out=tmp_path)
    MEASURED.clear()
    reproduce(replace(FINDING, **edit), out=tmp_path)
    assert len(MEASURED) == (4 if "variants" in edit else 8)


def test_the_quick_budget_is_said_everywhere(tmp_path: Path) -> None:
    result = reproduce(FINDING, out=tmp_path, quick=True)
    assert result.budget == json.loads((tmp_path / "finding.json").read_text())["budget"] == "quick"
    assert "quick budget" in (tmp_path / "picture.svg").read_text().replace("<!-- ", "")
    assert "--quick" in result.command


def test_a_changed_cell_is_noticed(tmp_path: Path) -> None:
    reproduce(FINDING, out=tmp_path)
    file = next((tmp_path / "cells").iterdir())
    content = json.loads(file.read_text())
    content["scores"]["loss"][0][2] += 1.0
    file.write_text(json.dumps(content))
    with pytest.raises(StoreChanged, match="changed since it was written"):
        reproduce(FINDING, out=tmp_path)


def test_more_seeds_add_to_the_stored_ones(tmp_path: Path) -> None:
    reproduce(FINDING, out=tmp_path)
    MEASURED.clear()
    result = reproduce(FINDING, out=tmp_path, seeds=4)
    assert {seed for _, seed, _ in MEASURED} == {2, 3}
    assert {cell.seed for cell in result.cells} == {0, 1, 2, 3} == set(result.to_dict()["seeds"])
    assert "--seeds 4" in result.command


@pytest.mark.parametrize("quick", [True, False])
def test_samples_of_the_budget_that_is_run(tmp_path: Path, quick: bool) -> None:
    sampled = replace(FINDING, full=Budget((0, 1), DRAWN), quick=Budget((0,), DRAWN))
    result = reproduce(sampled, out=tmp_path, quick=quick, samples=9)
    assert result.to_dict()["options"] == {"documents": 12, "samples": 9}
    assert "--samples 9" in result.command


def test_the_command_says_how_a_text_is_read(tmp_path: Path) -> None:
    book = tmp_path / "two stories.txt"
    book.write_text("One story.\n---\nAnother story.\n", encoding="utf-8")
    text = TextSource.of_names(str(book), separator="\n---\n")
    reading = replace(FINDING, reads_text=True)
    words = shlex.split(reproduce(reading, out=tmp_path / "out", text=text).command)
    assert words == ["hf-posenc", "reproduce", "made_up", "--text", str(book), "--document-separator", r"\n---\n"]
    assert shlex.split(reproduce(reading, out=tmp_path / "plain", text=book).command) == words[:5]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"body": "A story."}\n', encoding="utf-8")
    named = reproduce(reading, out=tmp_path / "rows", text=TextSource.of_names(str(rows), field="body"))
    assert shlex.split(named.command)[3:] == ["--text", str(rows), "--text-field", "body"]


def test_what_has_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFinding, match="takes none"):
        reproduce(FINDING, out=tmp_path, model="starter:llama")
    with pytest.raises(UnknownFinding, match="reads none"):
        reproduce(FINDING, out=tmp_path, text="book.txt")
    with pytest.raises(UnknownFinding, match="fixed set of questions"):
        reproduce(FINDING, out=tmp_path, samples=9)
    with pytest.raises(UnknownFinding, match="nothing from random weights"):
        reproduce(replace(FINDING, full=Budget((0,), DRAWN)), out=tmp_path, seeds=9)
    with pytest.raises(UnknownFinding, match="zero_shot_order"):
        reproduce("zero_shot_oder", out=tmp_path)


def test_a_patched_model_is_not_measured_as_the_unpatched_one(tmp_path: Path) -> None:
    patch_model(from_pretrained("starter:llama"), "alibi").save_pretrained(tmp_path / "alibi")
    with pytest.raises(AlreadyPatched, match=r"alibi.+streaming_cliff.+unpatched"):
        reproduce("streaming_cliff", out=tmp_path / "results", model=str(tmp_path / "alibi"))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("given", [{"seeds": 0}, {"seeds": 1}, {"samples": -1}])
def test_numbers_without_an_interval_are_refused(tmp_path: Path, given: dict[str, int]) -> None:
    with pytest.raises(OptionOutOfRange, match="at least 2"):
        reproduce(FINDING, out=tmp_path, **given)
    assert not MEASURED


def test_a_point_that_is_not_scored_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CellMissing, match="did not score one at"):
        reproduce(replace(FINDING, measure=nothing), out=tmp_path)


def nothing(job: Job) -> Iterator[tuple[float, Scores]]:
    """A measurement that scores nothing."""
    yield from ()


def test_claims_must_be_about_what_is_measured() -> None:
    with pytest.raises(ValueError, match="not measured"):
        replace(FINDING, claims=(Order("one", "three", 1.0),))
