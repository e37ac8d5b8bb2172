"""A leaderboard: its cells are those of `compare`, its ranks need sure differences, its files hold every number."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import json
import os
import random
import re
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from hf_posenc.cli import main
from hf_posenc.cli.commands.leaderboard import show
from hf_posenc.errors import AlreadyPatched, BadComparison
from hf_posenc.eval import MeasuredModel
from hf_posenc.eval.comparison import measure
from hf_posenc.eval.report import exports
from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.insight.bench.devices import Cpu
from hf_posenc.insight.leaderboard import Leaderboard, leaderboard, paired_costs, read_leaderboard
from hf_posenc.insight.leaderboard.choose import REPLACES, SAME, TRAINING, kind_of, zero_shot_schemes
from hf_posenc.insight.leaderboard.exports import CSV_COLUMNS, csv_text, latex_text, markdown_text
from hf_posenc.insight.leaderboard.line import Behind, LengthScore, Line, PairedCost, Rank
from hf_posenc.insight.leaderboard.model import loaded
from hf_posenc.insight.leaderboard.page import page_html
from hf_posenc.insight.leaderboard.pareto import front, picture, points_of
from hf_posenc.insight.leaderboard.ranks import ranks
from hf_posenc.insight.leaderboard.words import cells
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.registry import scheme_record

from .conftest import TRAINED

pytest.importorskip("matplotlib")

SMALL: dict[str, Any] = {"samples": 4, "scored": 16, "keys": 3, "depths": (0.0,), "rounds": 2}
LENGTHS = [TRAINED, 2 * TRAINED]
SCHEMES = "pi,window:size=64"


@pytest.fixture(autouse=True)
def only_numbers_of_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures and pages of single comparisons have tests of their own, and take seconds."""
    monkeypatch.setattr(exports, "figure_files", lambda comparison: {})
    monkeypatch.setattr(exports, "page_html", lambda comparison: "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leaderboard")


@pytest.fixture
def saved(llama, tokenizer, folder: Path) -> str:
    """A folder with the tiny model, which a command can name."""
    path = folder / "tiny"
    if not path.exists():
        llama.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def board(saved: str, folder: Path) -> Leaderboard:
    """Made once; then read from its file."""
    file = folder / "out" / "leaderboard.json"
    if not file.exists():
        leaderboard(saved, out=folder / "out", schemes=SCHEMES, lengths=LENGTHS, command="again", dtype="auto", **SMALL)
    return read_leaderboard(file)


def line(scheme: str, value: float | None, time: float | None, **more: Any) -> Line:
    """A made-up line."""
    score = LengthScore(
        512, "done" if value is not None else "refused", value, None, None, None, None, 4, "", "", "run it"
    )
    costs = () if time is None else (PairedCost("prefill", 512, time, time, time, 1.5, 0.01),)
    given = {"metric": "nll", "use": "zero-shot", "rank": None, **more}
    return Line(
        "m",
        scheme,
        "remap",
        given["use"],
        "posenc_ppl",
        given["metric"],
        (score,),
        None,
        given["rank"],
        None,
        costs,
        None,
    )


def test_a_printed_command_measures_the_same_cell(board: Leaderboard, tmp_path: Path) -> None:
    chosen = next(x for x in board.lines if (x.scheme, x.task) == ("pi", "posenc_ppl"))
    words = shlex.split(chosen.scores[0].command)  # the shorter length, patched for the longer one
    assert words[:2] == ["hf-posenc", "compare"]
    words[words.index("--out") + 1] = str(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([*words[1:], "--quiet"])
    assert end.value.code == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert [cell["key"] for cell in found["cells"]] == [chosen.scores[0].key]
    value = next(row["value"] for row in found["rows"] if row["metric"] == "nll")
    assert value == chosen.scores[0].value
    assert value != chosen.scores[1].value  # control


def test_a_printed_command_loads_the_model_alike(saved: str, tmp_path: Path) -> None:
    """In half precision, which gives another loss."""
    given = {"schemes": "pi", "lengths": LENGTHS, "tasks": ["posenc_ppl"], **SMALL}
    made = leaderboard(saved, out=tmp_path / "board", dtype="bfloat16", device="cpu", **given)
    assert made.about["models"][0]["loading"] == {"dtype": "bfloat16", "device": "cpu"}
    score = next(line for line in made.lines if line.scheme == "pi").scores[0]
    words = shlex.split(score.command)
    words[words.index("--out") + 1] = str(tmp_path / "cell")
    with pytest.raises(SystemExit) as end:
        main([*words[1:], "--quiet"])
    assert end.value.code == 0
    rows = json.loads((tmp_path / "cell" / "results.json").read_text())["rows"]
    assert [row["value"] for row in rows if row["metric"] == "nll"] == [score.value]


def test_the_command_line_measures_nothing_twice(
    saved: str, folder: Path, board: Leaderboard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    words = ["leaderboard", "--models", saved, "--schemes", SCHEMES, "--lengths", ",".join(map(str, LENGTHS))]
    words += ["--scored", "16", "--samples", "4", "--keys", "3", "--depths", "0", "--rounds", "2", "--json", "--quick"]
    words += ["--out", str(folder / "out")]  # --quick changes nothing where all its settings are given
    monkeypatch.setattr(measure, "measure_cell", refused)
    monkeypatch.setattr(paired_costs, "bench", refused)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code in (0, None)
    found = Leaderboard.from_dict(json.loads(capsys.readouterr().out))
    assert found.lines == board.lines
    assert shlex.split(found.about["command"])[:2] == ["hf-posenc", "leaderboard"]
    with pytest.raises(AssertionError):  # control: another seed is measured
        leaderboard(saved, out=folder / "out", schemes="pi", lengths=LENGTHS, dtype="auto", **{**SMALL, "seed": 1})


def test_settings_that_no_task_reads_are_refused(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["leaderboard", "-m", saved, "-t", "posenc_ppl", "--keys", "2", "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    assert "None of the tasks posenc_ppl reads keys." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_the_model_cannot_do_is_said_of_these_tables(board: Leaderboard, folder: Path, capsys: Any) -> None:
    show(board, folder)
    printed = " ".join(capsys.readouterr().out.split())
    (remark,) = board.about["models"][0]["remarks"]
    assert "3 documents), not surely above 5 %" in remark
    assert "results.csv" not in remark
    assert remark in printed
    assert remark in markdown_text(board)


def test_costs_are_ratios_to_the_unpatched_model(board: Leaderboard) -> None:
    for one in board.lines:
        assert [cost.case for cost in one.costs] == ([] if one.use == "unpatched" else ["prefill", "decode"])
        assert all(0 < cost.time_low <= cost.time <= cost.time_high for cost in one.costs)
        assert one.cache_per_token == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, channels, bytes


def test_the_model_that_is_timed_is_the_one_that_is_scored(llama, saved: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
    scored = peft.get_peft_model(llama, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    scored.save_pretrained(tmp_path / "adapter")
    home = tmp_path / "cache" / "models--owner--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree(saved, home / "snapshots" / ("0" * 40))
    weights = scored.merge_and_unload()
    weights.save_pretrained(home / "snapshots" / ("1" * 40))
    hub = {"cache_dir": str(tmp_path / "cache"), "local_files_only": True}
    for given in (
        MeasuredModel(saved, arguments={"peft": str(tmp_path / "adapter")}),
        MeasuredModel("owner/tiny", arguments={"revision": "1" * 40, **hub}),
    ):
        timed = loaded(given).model.state_dict()
        assert all(torch.allclose(timed[name], weight) for name, weight in weights.state_dict().items())


def test_costs_of_other_code_or_another_machine_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = paired_costs.Timing(64, 2.0, ("prefill",), 2, 1, Cpu())
    entry = Entry("yarn", "yarn")
    keys = [timing.key(entry, "model")]
    assert timing.key(entry, "model") == keys[0]
    monkeypatch.setattr(paired_costs, "package_digest", lambda: "another")
    keys.append(timing.key(entry, "model"))
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    keys.append(timing.key(entry, "model"))
    assert len(set(keys)) == 3


def test_the_file_has_all_of_it(board: Leaderboard, tmp_path: Path) -> None:
    assert Leaderboard.from_dict(json.loads(json.dumps(board.to_dict()))) == board
    assert {(x.scheme, x.task) for x in board.lines} == set(
        itertools.product(("unpatched", "pi", "window:size=64"), ("posenc_ppl", "posenc_passkey"))
    )
    for content in ("", "[]", '{"format": 2}', '{"format": 1}'):
        (tmp_path / "leaderboard.json").write_text(content)
        with pytest.raises(BadComparison):
            read_leaderboard(tmp_path / "leaderboard.json")


def test_a_task_without_lengths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadComparison, match="length by length and read no records, not hellaswag"):
        leaderboard("starter:llama", out=tmp_path, tasks=["posenc_ppl", "hellaswag"])


def test_a_patched_model_is_refused(llama, tokenizer, tmp_path: Path) -> None:
    from hf_posenc.eval import MeasuredModel

    patch_model(llama, "pi", factor=2)
    with pytest.raises(AlreadyPatched):
        leaderboard(MeasuredModel(llama, tokenizer=tokenizer), out=tmp_path)


def test_a_live_model_keeps_its_mode(llama, tokenizer, tmp_path: Path) -> None:
    from hf_posenc.eval import MeasuredModel

    live = MeasuredModel(llama.train(), tokenizer=tokenizer)
    leaderboard(live, out=tmp_path, schemes="pi", lengths=[TRAINED], tasks=["posenc_ppl"], **SMALL)
    assert all(module.training for module in llama.modules())


def test_schemes_that_make_sense_without_training(llama, gpt2) -> None:
    chosen = zero_shot_schemes(llama, 2 * TRAINED)
    names = {entry.label for entry in chosen.entries}
    assert {"yarn", "pi", "rerope", "self_extend", "dca", "window", "logn"} <= names
    assert all(scheme_record(name).zero_shot for name in names)
    assert chosen.left_out["rope"] == SAME
    assert chosen.left_out["alibi"] == TRAINING
    assert not names & set(chosen.left_out)
    of_table = zero_shot_schemes(gpt2, 2 * TRAINED)
    assert {entry.label for entry in of_table.entries} == {"learned_hier", "learned_interp"}
    assert of_table.left_out["yarn"] == REPLACES


def test_kinds_are_the_folders_of_schemes() -> None:
    named = {kind_of(name) for name in (None, "yarn", "rerope", "window", "logn", "learned_hier", "yarn+logn")}
    assert named == {"unpatched", "rotary", "remap", "mask", "attention scale", "absolute"}


def documents(values: np.ndarray) -> list[DocumentScore]:
    return [DocumentScore("t", f"d{n}", f"d{n}", 512, None, "nll", float(v)) for n, v in enumerate(values)]


def test_ranks_are_those_of_corrected_paired_tests() -> None:
    """Against scipy's paired t-test and Holm's correction by its definition."""
    rng = np.random.default_rng(0)
    hard = rng.normal(size=16)
    losses = {
        name: hard + shift + 0.1 * rng.normal(size=16) for name, shift in zip("abcd", (0, 0, 0.2, 2), strict=True)
    }
    pairs = list(itertools.combinations(losses, 2))
    raw = [ttest_rel(losses[a], losses[b]).pvalue for a, b in pairs]
    order = np.argsort(raw)
    sure: list[tuple[str, str]] = []
    for rank, index in enumerate(order):
        if raw[index] * (len(raw) - rank) >= 0.05:
            break
        a, b = pairs[index]
        sure.append((a, b) if losses[a].mean() < losses[b].mean() else (b, a))
    expected = {
        name: Rank(1 + sum(b == name for _, b in sure), 4 - sum(a == name for a, _ in sure), 4) for name in losses
    }
    found = ranks({name: documents(values) for name, values in losses.items()}, higher_is_better=False)
    assert found == expected
    assert found["d"] == Rank(4, 4, 4)
    assert found["a"].last == found["b"].last == 2
    turned = ranks({name: documents(values) for name, values in losses.items()}, higher_is_better=True)
    assert turned["d"] == Rank(1, 1, 4)


def test_chance_has_no_winner() -> None:
    """Twelve schemes that are equally good: the best mean is first of none in 20 tables; uncorrected it often is."""
    lucky = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = ranks({f"s{n}": documents(rng.normal(size=12)) for n in range(12)}, higher_is_better=False)
        lucky += any(rank.last < 12 for rank in found.values())
    assert lucky <= 3  # 5 % of tables are expected


def test_the_front_is_what_nothing_dominates() -> None:
    rng = random.Random(0)
    lines = [line(f"s{n}", rng.choice((2.0, 2.5, 3.0, rng.uniform(2, 3))), rng.uniform(1, 2)) for n in range(30)]
    points = points_of([*lines, line("none", None, 1.0), line("untimed", 2.0, None)])
    assert len(points) == 30
    expected = {
        p.line.scheme
        for p in points
        if not any((q.time[0] <= p.time[0] and q.score < p.score) or (q.time[0] < p.time[0] and q.score <= p.score)
                   for q in points)
    }  # fmt: skip
    assert {point.line.scheme for point in front(points)} == expected
    assert picture([line("alone", 2.0, 1.0)]) is None


@pytest.mark.parametrize(("metric", "reach"), [("acc", (0.0, 100.0)), ("nll", (-0.3, 1.2))])
def test_bars_of_shares_end_at_none_and_all(metric: str, reach: tuple[float, float]) -> None:
    """Bars are those of the difference from the first line, ±0.3 here; a loss has no bounds."""
    pytest.importorskip("matplotlib")
    pair = [line("none", 0.0, 1.0, metric=metric), line("most", 0.9, 1.2, metric=metric)]
    drawn = picture([replace(one, behind=Behind("first", 0.0, -0.3, 0.3)) for one in pair])
    assert drawn is not None
    bars = [path for lines in drawn[0].axes[0].collections for path in lines.get_paths()]
    heights = [float(y) for path in bars for y in path.vertices[:, 1]]
    assert (min(heights), max(heights)) == pytest.approx(reach)


@pytest.mark.parametrize("metric", ["acc", "gain"])
def test_of_shares_and_gains_more_is_better(metric: str) -> None:
    points = points_of([line("cheap", 0.5, 1.0, metric=metric), line("good", 0.9, 1.2, metric=metric),
                        line("bad", 0.4, 1.3, metric=metric)])  # fmt: skip
    assert [point.line.scheme for point in front(points)] == ["cheap", "good"]


class Page(HTMLParser):
    """What a page shows and asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_complete_and_self_contained(board: Leaderboard) -> None:
    text = page_html(board)
    page = Page(text)
    shown = " ".join(" ".join(page.texts).split())
    for one in board.lines:
        for cell in cells(one, [x for x in board.lines if x.task == one.task]):
            assert cell in shown
        assert all(score.command in shown for score in one.scores)
    assert not [
        1
        for _, given in page.tags
        for name in ("src", "href", "onclick")
        if not (given.get(name) or "#").startswith("#")
    ]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text  # the only one that may run
    assert {given["name"] for tag, given in page.tags if tag == "select"} == {"model", "task", "kind"}
    sections = [given for tag, given in page.tags if tag == "section" and "data-task" in given]
    assert {given["data-task"] for given in sections} == {"posenc_ppl", "posenc_passkey"}
    assert {given["data-kind"] for tag, given in page.tags if tag == "tr" and given} == {"unpatched", "rotary", "mask"}
    pictures = [given for tag, given in page.tags if tag == "svg"]
    assert pictures
    assert all(given["role"] == "img" and "Pareto front" in str(given["aria-label"]) for given in pictures)
    assert any(given.get("name") == "viewport" for _, given in page.tags)


@pytest.mark.parametrize(
    "payload", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "=A()"]
)
def test_foreign_names_stay_text(board: Leaderboard, payload: str) -> None:
    foreign = Leaderboard(
        {**board.about, "models": [{**model, "name": payload} for model in board.about["models"]]},
        [
            replace(one, model=payload, scheme=f"s{payload}" if one.scheme == "pi" else one.scheme)
            for one in board.lines
        ],
    )
    text = page_html(foreign)
    assert len(re.findall("<script", text)) == 1
    assert "<img" not in text
    assert "<script" not in markdown_text(foreign)
    first = next(csv.DictReader(io.StringIO(csv_text(foreign))))
    assert not first["model"].startswith("=")
    assert "\\begin{tabular}" in latex_text(foreign)


def test_csv_has_a_line_for_every_cell(board: Leaderboard) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(board))))
    assert len(rows) == sum(len(one.scores) for one in board.lines)
    assert tuple(rows[0]) == CSV_COLUMNS
    wanted = [score.value for one in board.lines for score in one.scores]
    assert [float(row["value"]) for row in rows] == wanted
    for row in rows:
        if row["bootstrap_low"]:
            assert float(row["bootstrap_low"]) < float(row["value"]) < float(row["bootstrap_high"])


def test_files_are_written_together(board: Leaderboard, folder: Path) -> None:
    names = {file.name for file in (folder / "out").iterdir() if file.is_file()}
    assert {"page.html", "leaderboard.json", "leaderboard.csv", "leaderboard.tex", "leaderboard.md"} <= names
    assert {Path(name).suffix for name in names if name.startswith("pareto_")} == {".png", ".svg", ".pdf"}
    for name in re.findall(r"!\[.*?\]\((.*?)\)", (folder / "out" / "leaderboard.md").read_text()):
        assert name in names
