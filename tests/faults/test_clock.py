"""A system clock that jumps to the past, past 2038 or to another time zone does not change results."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from hf_posenc.eval import compare
from hf_posenc.eval.comparison import progress as pace
from hf_posenc.eval.comparison.progress import RemainingTime, Slot

from .operations import byte_tokenizer, tiny_llama

LENGTHS = [16, 32]


def measured(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    compare(
        tiny_llama(0), "unpatched,pi", out=folder, tokenizer=byte_tokenizer(), lengths=LENGTHS, tasks=["posenc_ppl"],
        samples=2, scored=4, text=text(folder.parent), name="tiny",
    )  # fmt: skip
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.suffix in (".json", ".csv", ".md", ".html") and path.name != "costs.csv"  # which holds times
    }


def text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(" ".join(f"w{i * i % 29 + 3}" for i in range(4000)))
    return path


def test_results_do_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("matplotlib")
    steady = measured(tmp_path / "steady")
    drawn = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: drawn.uniform(-1e9, 2**33))
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "4102444800")
    time.tzset()
    assert measured(tmp_path / "jumping") == steady


def test_progress_is_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a cell seems to have taken no time, or very long."""
    fractions: list[float] = []
    progress = RemainingTime([Slot("a", 16, "yarn")] * 4, [], lambda done, doing: fractions.append(done))
    for seconds in (0.0, 1e9, 1e-9, 3.0):
        progress.begin("")
        progress.on_request()
        progress.end(seconds)
    assert fractions == sorted(fractions)
    assert all(0.0 <= share <= 1.0 for share in fractions)
    assert "time.time" not in Path(pace.__file__).read_text(encoding="utf-8")
