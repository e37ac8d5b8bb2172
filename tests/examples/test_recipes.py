"""The recipes for Llama, BERT, GPT-2 and models from scratch run, report, and resume."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from hf_posenc import describe, from_pretrained
from hf_posenc.starters import starter_path

from ..example_modules import EXAMPLES, example_module

pytestmark = pytest.mark.slow


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """An example, imported from its file."""
    with example_module(request.param) as module:
        yield module


def run(example: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", [example.__name__, *map(str, words)])
    example.main()


def results(folder: Path) -> object:
    return json.loads((folder / "results.json").read_text())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A little text, so that reading it takes no time."""
    file = tmp_path / "text.txt"
    file.write_text((EXAMPLES / "train_starters.py").read_text())
    return file


SHORT = ("--factor", 2, "--steps", 1, "--batch", 1, "--samples", 2, "--save-every", 1)


@pytest.mark.parametrize("example", ["extend_bert"], indirect=True)
def test_bert_is_extended_and_finished_seeds_are_not_repeated(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: Path
) -> None:
    output = tmp_path / "bert"
    words = (*SHORT, "--text", text, "--output", output)
    run(example, monkeypatch, *words)
    found = results(output)["recall"]
    assert set(found["seed 0"]["posenc_mlm"]) == {"256", "512"}
    with pytest.raises(SystemExit, match="earlier run"):
        run(example, monkeypatch, *words)
    with pytest.raises(SystemExit, match="other learning_rate"):
        run(example, monkeypatch, *words, "--resume", "--learning-rate", 1)
    monkeypatch.setattr(example, "finetune", None)  # nothing is left to train
    run(example, monkeypatch, *words, "--resume")
    assert results(output)["recall"] == found
    assert describe(from_pretrained(output / "seed-0")).target_length == 512


@pytest.mark.parametrize("example", ["convert_gpt2"], indirect=True)
def test_gpt2_takes_another_kind_of_position(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: Path
) -> None:
    output = tmp_path / "gpt2"
    run(example, monkeypatch, *SHORT, "--scheme", "alibi", "--seeds", 0, 1, "--text", text, "--output", output)
    seeds = results(output)["seeds"]
    assert set(seeds) == {"0", "1"}
    assert all(set(run["after"]) == {"256", "512"} for run in seeds.values())
    assert "unpatched" in (output / "results.md").read_text()
    assert describe(from_pretrained(output / "seed-1")).scheme == "alibi"


@pytest.mark.parametrize("example", ["from_scratch"], indirect=True)
@pytest.mark.parametrize("task", ["text", "copy", "addition"])
def test_cells_are_filled_once(example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str) -> None:
    words = ("--task", task, "--output", tmp_path, "--steps", 2, "--batch", 2, "--width", 16, "--layers", 1)
    words = (*words, "--trained", 8, "--asked", 4, 8, 12)
    run(example, monkeypatch, *words, "--schemes", "learned", "alibi")
    found = {cell["scheme"]: cell["measured"] for cell in results(tmp_path)}
    assert found["learned"]["8"] is not None
    assert found["learned"]["12"] is None  # its table has ended
    assert found["alibi"]["12"] is not None
    monkeypatch.setattr(example, "finetune", None)  # what is there is read, not trained again
    run(example, monkeypatch, *words, "--schemes", "alibi")
    with pytest.raises(SystemExit, match="another task or budget"):
        run(example, monkeypatch, *words, "--schemes", "alibi", "--steps", 3)


def test_two_seeds_of_lora_and_the_way_back_to_the_adapter(tmp_path: Path, text: Path) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    words = ("--factor", "2", "--steps", "2", "--save-every", "1", "--eval-every", "2", "--seeds", "0", "1")
    words = (*words, "--text", str(text), "--held-out", str(text), "--output", str(tmp_path / "run"))
    command = [sys.executable, str(EXAMPLES / "finetune_lora.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "run")
    assert [row["length"] for row in found["rows"]] == [256, 512]
    assert found["rows"][0]["spread"] > 0
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1, "it is resumed on request only"
    adapted = from_pretrained(starter_path("llama"), peft_adapter=tmp_path / "run" / "seed-1")
    assert describe(adapted).scheme == "dca"


def test_searched_factors_are_factors_and_beat_interpolation_on_other_text() -> None:
    pytest.importorskip("cma", reason="the search needs pycma")
    words = ("--factor", "2", "--budget", "14", "--rows", "2")
    command = [sys.executable, str(EXAMPLES / "search_longrope.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    factors = json.loads(done.stdout.partition("long_factor: ")[2].partition("\n")[0])
    assert all(1 <= a <= b for a, b in pairwise(factors))
    losses = dict(line.split() for line in done.stdout.splitlines() if line.startswith("  "))
    assert float(losses["longrope"]) < float(losses["pi"]) - 0.1
