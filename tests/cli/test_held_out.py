"""`finetune` keeps the identity of its held-out text; `eval` and `compare` on the run measure it again."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import from_pretrained
from hf_posenc.checkpoints.held_out_texts import copy_held_out
from hf_posenc.checkpoints.merge import merge
from hf_posenc.checkpoints.tokenizer import load_tokenizer
from hf_posenc.cli import main
from hf_posenc.errors import BadComparison, CheckpointMismatch
from hf_posenc.eval.settings import EvaluateSettings
from hf_posenc.eval.texts.held_out import with_held_out
from hf_posenc.training import Training, finetune

TUNE = ["finetune", "-m", "starter:llama", "-s", "yarn", "-f", "2", "--steps", "3", "--set", "rank=2"]
TUNE += ["--set", "length=64", "--set", "eval_lengths=64,320", "--set", "eval_windows=4"]
MEASURE = ["-t", "posenc_held_out"]


def novel(seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(f"On day {n} {draw.choice('ABC')} met {draw.choice('DEF')}." for n in range(1500))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the beginning of a text, whose end it held out."""
    found = tmp_path_factory.mktemp("held-out")
    (found / "novel.txt").write_text(novel(0))
    with pytest.raises(SystemExit) as ended:
        main([*TUNE, "--text", str(found / "novel.txt"), "--out", str(found / "run")])
    assert not ended.value.code
    return found


def losses(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[int, float]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--json"])
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    return {row["length"]: row["value"] for row in json.loads(out) if row["metric"] == "nll"}


def curve(folder: Path, point: int) -> Any:
    measured = [one["held_out"] for one in json.loads((folder / "run" / "curve.json").read_text()) if one["held_out"]]
    return pytest.approx({int(length): loss for length, loss in measured[point].items()}, abs=1e-4)


@pytest.mark.slow
def test_eval_repeats_the_last_losses_of_the_run(folder: Path, capsys) -> None:
    """The curve is `Trainer`'s, the other side lm-eval's. A text of one's own, or the model before, has others."""
    found = losses(capsys, "eval", "-m", folder / "run", *MEASURE)
    assert found == curve(folder, -1)
    assert found != curve(folder, 0)
    one = losses(capsys, "eval", "-m", folder / "run", *MEASURE, "-l", "64")
    assert one == {64: pytest.approx(found[64], abs=1e-4)}  # of the same tokens, though no length is longer


@pytest.mark.slow
def test_compare_measures_the_base_on_what_the_run_held_out(folder: Path, capsys) -> None:
    """The base under the scheme of the run is the model before the first step."""
    with pytest.raises(SystemExit):
        main([
            "compare", "-m", str(folder / "run"), "-m", "starter:llama", "-s", "unpatched,yarn:factor=2", *MEASURE,
            "--out", str(folder / "results"), "--json",
        ])  # fmt: skip
    found = json.loads((folder / "results" / "results.json").read_text())
    assert "novel.txt" in found["about"]["text"]
    values = {(row["scheme"], row["length"]): row["value"] for row in found["rows"] if row["metric"] == "nll"}
    of = lambda label: {length: value for (scheme, length), value in values.items() if scheme.startswith(label)}  # noqa: E731
    assert of("run · yarn (as saved)") == curve(folder, -1)
    assert of("starter:llama · yarn") == curve(folder, 0)


@pytest.mark.parametrize("now", [None, novel(1), novel(0)[:-9]], ids=["gone", "another", "shorter"])
def test_a_changed_text_is_refused(folder: Path, tmp_path: Path, monkeypatch, now: str | None) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    record = json.loads((run / "held_out.json").read_text())
    text = tmp_path / "novel.txt"
    if now is not None:
        text.write_text(now)
    (run / "held_out.json").write_text(json.dumps(record | {"texts": [str(text)], "separator": None}))
    with pytest.raises(CheckpointMismatch, match="the last"):
        with_held_out(EvaluateSettings(), [run])
    assert with_held_out(EvaluateSettings(text="other.txt"), [run]).text == "other.txt"
    assert with_held_out(EvaluateSettings(tasks=("posenc_cwe", "hellaswag")), [run]).text is None
    text.write_text("A new beginning. " + novel(0))  # the end is what was held out
    assert with_held_out(EvaluateSettings(), [run]).samples == record["windows"]


@pytest.mark.parametrize("change", [{"tokens": 0}, {"texts": 3}, {"unknown": 1}], ids=str)
def test_a_damaged_record_is_refused(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    record = json.loads((folder / "run" / "held_out.json").read_text())
    (tmp_path / "held_out.json").write_text(json.dumps(record | change))
    with pytest.raises(CheckpointMismatch):
        with_held_out(EvaluateSettings(), [tmp_path])


def test_texts_without_a_name_have_to_be_named(tmp_path: Path) -> None:
    model = from_pretrained("starter:llama", scheme="yarn", factor=2)
    training = Training(length=64, steps=1, rank=2, eval_lengths=(64,), eval_windows=2)
    finetune(model, load_tokenizer(model.config.name_or_path), [novel(0)], training, held_out=[novel(2)], out=tmp_path)
    with pytest.raises(CheckpointMismatch, match="without a name"):
        with_held_out(EvaluateSettings(), [tmp_path])


def test_runs_with_different_texts_have_no_common_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(novel(3))
    with pytest.raises(SystemExit):
        main([*TUNE, "--text", str(tmp_path / "other.txt"), "--out", str(tmp_path / "run")])
    with pytest.raises(BadComparison):
        with_held_out(EvaluateSettings(), [folder / "run", tmp_path / "run"])


def texts_of(folder: Path) -> list[str]:
    return json.loads((folder / "held_out.json").read_text())["texts"]


def test_a_run_and_its_text_are_moved_together(folder: Path, tmp_path: Path) -> None:
    assert texts_of(folder / "run") == ["../novel.txt"]
    moved = shutil.copytree(folder, tmp_path / "moved")
    measured = with_held_out(EvaluateSettings(), [moved / "run"]).text
    assert str(moved / "novel.txt") in measured.label
    copy_held_out(moved / "run" / "checkpoint-3", tmp_path)  # of what was made of the run, and lies elsewhere
    assert texts_of(tmp_path) == ["moved/novel.txt"]
    copy_held_out("starter:llama", tmp_path / "moved")  # control: it is of no run
    assert not (tmp_path / "moved" / "held_out.json").exists()


def test_a_merged_run_is_measured_on_what_the_run_held_out(folder: Path, tmp_path: Path) -> None:
    merge(folder / "run", folder / "merged")
    own, merged = (with_held_out(EvaluateSettings(), [folder / name]).text for name in ("run", "merged"))
    assert own.tokens.tolist() == merged.tokens.tolist()
