"""``hf-posenc finetune``: what it prints before and after, and the command that resumes it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

import hf_posenc.training
from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.cli import main, settings
from hf_posenc.cli.commands.finetune import check_effect
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.settings import READING, settings_of

TUNE = ["finetune", "-m", "starter:llama", "-s", "yarn", "-f", "2", "--steps", "2", "--set", "length=64"]
TUNE += ["--set", "rank=2", "--set", "eval_lengths=64"]


def run(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, None)


@pytest.mark.slow
def test_trained_parameters_are_shown_before_the_run_and_it_goes_on(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    run([*TUNE, "--set", "train_embeddings=false", "--out", str(out), "--json"])
    shown = capsys.readouterr()
    assert "LoRA matrices" in shown.err
    assert "resume" not in shown.err
    assert "learning rate 0.001 (measured on the bundled models)" in shown.err
    start = json.loads(shown.out)["start"]
    assert set(start["parameters"]) == {"LoRA matrices", "norms"}
    assert start["learning_rate"] == 1e-3
    more = ["3" if word == "2" and TUNE[n - 1] == "--steps" else word for n, word in enumerate(TUNE)]
    run([*more, "--set", "train_embeddings=false", "--out", str(out), "--json", "--resume"])
    shown = capsys.readouterr()
    assert "resumed from the checkpoint of step 2\n" in shown.err
    assert json.loads(shown.out)["start"]["resumed_from"] == 2
    curve = json.loads(shown.out)["curve"]
    assert [point["step"] for point in curve] == [0, 1, 2, 3]
    card = (out / "README.md").read_text()
    assert "| steps | 3 |" in card
    assert "| held-out loss at 64 tokens |" in card


def test_an_interrupted_run_names_every_flag_of_its_command(tmp_path: Path, monkeypatch, capsys) -> None:
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(hf_posenc.training, "finetune", interrupted, raising=False)
    with pytest.raises(SystemExit):
        main([*TUNE, "--set", "train_embeddings=false", "--out", str(tmp_path / "run")])
    command = capsys.readouterr().err.split("resume with: ")[1]
    assert " --set train_embeddings=false " in command
    assert command.rstrip().endswith("--resume")


def test_the_learning_rate_is_looked_for_instead_of_the_run(tmp_path: Path, monkeypatch, capsys) -> None:
    defaults = hf_posenc.training.find_learning_rate.__kwdefaults__
    monkeypatch.setattr(
        hf_posenc.training.find_learning_rate,
        "__kwdefaults__",
        {**defaults, "steps": 4, "lowest": 1e-5, "highest": 1e-3},
    )
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 400)
    out = tmp_path / "out"
    run([*TUNE, "--find-learning-rate", "--text", str(tmp_path / "text.txt"), "--out", str(out)])
    printed = " ".join(capsys.readouterr().out.split())
    following = printed.partition("Next:")[2]
    assert "hf-posenc finetune --model" in following
    assert "--set rank=2" in following
    assert float(following.split()[-1]) > 0
    assert "--find-learning-rate" not in following
    assert not out.exists()


def test_a_scheme_that_reads_past_the_table_has_an_effect() -> None:
    """Within the table its positions are the model's own, so that the effect probe finds nothing to compare."""
    longer = patch_model(tiny_model("bert"), "learned_hier", target_length=2 * TRAINED_LENGTH)
    check_effect(longer, "learned_hier")
    with pytest.raises(BadArgument, match="already"):
        check_effect(patch_model(tiny_model("bert"), "learned"), "learned")


def test_settings_are_of_the_type_that_they_are_in_python(monkeypatch) -> None:
    words = ["length=2k", "target_modules=q_proj,v_proj", "eval_lengths=256,1k", "bf16=true", "warmup=0", "seed=3"]
    monkeypatch.setattr(settings, "merged_words", lambda context: [*words, "text_field=12"])
    known = (*hf_posenc.training.Training.__dataclass_fields__, *READING)
    assert settings_of(SimpleNamespace(), known) == {
        "length": 2048, "target_modules": ("q_proj", "v_proj"), "eval_lengths": (256, 1024), "bf16": True, "warmup": 0,
        "seed": 3, "text_field": "12",
    }  # fmt: skip
