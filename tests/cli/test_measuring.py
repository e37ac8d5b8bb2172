"""Commands that measure, ``bench``, ``probe`` and ``eval``: output, files, and what an interrupted run keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.cli import output
from hf_posenc.insight.bench import run as measuring

from .conftest import Call

TINY = ("--shape", "1,32,2,2", "--lengths", "32,64", "--rounds", "2", "--device", "cpu")


@pytest.mark.slow
def test_json_is_complete(call: Callable) -> None:
    answer = call("bench", *TINY, "--schemes", "yarn,self_extend:group=16,window=8", "--cases", "decode", "--json")
    assert answer.code == 0, answer.err
    about, cells = answer.data["about"], answer.data["cells"]
    assert (about["threads"], about["dtype"], about["model"]) == (1, "float32", "1,32,2,2")
    assert about["command"].startswith("hf-posenc bench --schemes")
    assert "torch" in about["versions"]
    assert [(c["scheme"], c["case"], c["length"]) for c in cells] == [
        (scheme, "decode", n) for n in (32, 64) for scheme in ("yarn", "self_extend:group=16,window=8")
    ]
    for cell in cells:
        assert set(cell["models"]) == {"unpatched", "patched"}
        assert len(cell["models"]["patched"]["wall_seconds"]) == 2
        assert cell["over"]["unpatched"]["time"]["median"] > 0
        assert cell["models"]["patched"]["memory_bytes"] > 0


def test_the_record_says_what_decides_the_memory(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = "bench", *TINY, "-s", "yarn", "--json"
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    without = call(*bench).data["about"]["environment"]
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert call(*bench).data["about"]["environment"] == {**without, "MALLOC_MMAP_THRESHOLD_": "65536"} != without


@pytest.mark.slow
def test_interrupted_it_keeps_what_is_finished(call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = measuring.cell_of, []

    def second_is_too_long(*given: Any) -> Any:
        seen.append(given)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(measuring, "cell_of", second_is_too_long)
    answer = call("bench", *TINY, "-s", "yarn", "--out", str(tmp_path))
    assert answer.code == 130
    assert "1 finished cell" in answer.err
    assert "yarn" in answer.out
    assert [cell["length"] for cell in json.loads((tmp_path / "bench.json").read_text())["cells"]] == [32]


SMALL = ("--samples", "2", "--set", "rows=16", "--length", "128")


@pytest.mark.slow
def test_tables_and_plots(call: Callable, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plot")
    answer = call("probe", "--model", "starter:gpt2", *SMALL, "--out", str(tmp_path / "out"))
    assert answer.code == 0
    assert "heads use position" in answer.out
    for name in ("distance", "heads"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "probe.json").read_text())["trained_length"] == 256


def test_options_reach_the_tasks(call: Call, tmp_path: Path) -> None:
    settings = ("keys=3", "depths=0,1", "limit=2", "log_samples=true", "scoring=generate", "haystack=repeat",
                "batch_size=2")  # fmt: skip
    out = tmp_path / "out.json"
    words = ("eval", "-m", "starter:llama", "-l", "128", "-t", "posenc_niah_single", "--out", str(out), "--json")
    answer = call(*words, *(word for one in settings for word in ("--set", one)))
    assert answer.code == 0, answer.err
    assert {(row["metric"], row["n"]) for row in answer.data} == {("match", 2), ("part", 2)}
    samples = json.loads(out.read_text())["lm_eval"]["samples"]["posenc_niah_single"]
    assert len(samples) == 2
    assert "The grass is green." in samples[0]["arguments"][0][0]


def test_a_narrow_table_breaks_no_word_that_has_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "PIPED_WIDTH", 40)
    output.show_table(["head", "distance", "beyond", "shuffled layer", "url"], [[1, "spread", "3 %", "72 %", "x" * 40]])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("distance", "spread", "beyond", "shuffled"))
    assert max(map(len, shown.splitlines())) <= 40


def test_files_of_another_program_stay(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plot")
    (tmp_path / "heads.png").write_text("of hours")
    answer = call("probe", "-m", "starter:gpt2", *SMALL, "--out", str(tmp_path))
    assert answer.code == 2
    assert "heads.png" in answer.err
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("heads.png", "of hours")]
