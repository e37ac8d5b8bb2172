"""The committed leaderboards: their pages are current, and a cell drawn at random is measured again."""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hf_posenc import from_pretrained
from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.cli import main
from hf_posenc.eval.catalogue import TEXT_TASKS
from hf_posenc.eval.comparison.identity import digest_of
from hf_posenc.eval.results.paired import ROUNDING
from hf_posenc.eval.texts.measured_text import default_text
from hf_posenc.insight.leaderboard import Leaderboard, read_leaderboard
from hf_posenc.insight.leaderboard.exports import csv_text
from hf_posenc.insight.leaderboard.line import LengthScore, Line

pytest.importorskip("matplotlib")

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS)]

import make_leaderboard  # noqa: E402

OWN_TEXT = ("posenc_passkey", "posenc_passkey_gen")
"""Tasks of the leaderboard that make their own text where none is given, on every Python."""


@pytest.fixture(scope="module", params=make_leaderboard.PAGES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def board(name: str) -> Leaderboard:
    return read_leaderboard(make_leaderboard.folder(name) / "leaderboard.json")


def drawn(board: Leaderboard, seed: int) -> tuple[Line, LengthScore]:
    """A cell with a score; of tasks on the held-out text, only where this Python has the same one."""
    text = digest_of("\n".join(str(document.content) for document in default_text().documents))
    lines = [
        line
        for line in board.lines
        if text == board.about["text"] or line.task not in TEXT_TASKS or line.task in OWN_TEXT
    ]
    cells = [(line, score) for line in lines for score in line.scores if score.value is not None]
    return random.Random(seed).choice(cells)


def agrees(line: Line, stored: LengthScore, found: float) -> bool:
    """Whether a number measured again is the stored one, up to rounding; of a share, one answer may tip over.

    Between processors the loss of a window moves by some ε · logit = 6e-8 · 10 in float32: 7e-7 nats/token at most
    between AVX-512, AVX2 and no vector instructions, on `rerope` at 1,024 tokens (``ATEN_CPU_CAPABILITY``).
    """
    assert stored.value is not None
    return abs(found - stored.value) <= (1 / stored.n + 1e-9 if line.is_share else ROUNDING)


@pytest.mark.parametrize("seed", [19, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (20, 21, 22))])
def test_a_drawn_cell_is_measured_again(board: Leaderboard, seed: int, tmp_path: Path) -> None:
    line, stored = drawn(board, seed)
    model = next(model for model in board.about["models"] if model["name"] == line.model)
    digest = model_digest(from_pretrained(line.model, dtype=torch.float32))
    assert digest == model["digests"]["model"], "The weights are others: make the leaderboard again."
    words = shlex.split(stored.command)
    words[words.index("--out") + 1] = str(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([*words[1:], "--quiet"])
    assert end.value.code == 0
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]
    found = next(row["value"] for row in rows if (row["metric"], row["depth"]) == (line.metric, None))
    assert agrees(line, stored, found), (stored.command, found, stored.value)
    edited = replace(stored, value=stored.value + (2.5 / stored.n if line.is_share else 1e-4))  # type: ignore[operator]
    assert not agrees(line, edited, found)  # control: an edited figure is noticed


def test_the_page_and_the_table_are_those_of_the_figures(name: str, board: Leaderboard) -> None:
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == make_leaderboard.page(name, board)
    table = make_leaderboard.folder(name) / "leaderboard.csv"
    assert table.read_text(encoding="utf-8") == csv_text(board)


def test_what_the_choice_of_a_scheme_says_of_retrieval() -> None:
    """The schemes that may be first on every task but copying, those on copying, and no others, are named as such."""
    board = read_leaderboard(make_leaderboard.folder("leaderboard-retrieval") / "leaderboard.json")
    first: dict[str, set[str]] = {line.task: set() for line in board.lines}
    for line in board.lines:
        if line.rank is not None and line.rank.first == 1:
            first[line.task].add(line.scheme)
    text = " ".join((DOCS / "choose.md").read_text(encoding="utf-8").split())
    elsewhere, _, after = text.partition("trained length, only ")[2].partition(" on every task but copying")
    copying = after.partition("only ")[2].partition(" on copying")[0]
    assert set(re.findall("`(.*?)`", copying)) == first.pop("posenc_copy")
    assert set(re.findall("`(.*?)`", elsewhere)) == set.intersection(*first.values())


def test_it_says_when_and_where_it_was_made(board: Leaderboard) -> None:
    about = board.about
    assert about["command"].startswith("hf-posenc leaderboard")
    assert {"processor", "cores", "threads"} <= about["machine"].keys()
    assert {"python", "torch", "transformers", "hf-posenc"} <= about["versions"].keys()
    assert len(about["date"].split("-")) == 3
    for line in board.lines:
        assert line.effective is None or line.effective.length in (0, *(score.length for score in line.scores))
        assert line.rank is None or 1 <= line.rank.first <= line.rank.last <= line.rank.of
