"""``hf-posenc finetune``: what it prints before and after, and the command that resumes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

import hf_posenc.training
from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.cli import settings
from hf_posenc.cli.commands.finetune import check_effect
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.settings import TEXT_FIELD, settings_of

from .conftest import Call

TUNE = ["finetune", "-m", "starter:llama", "-s", "yarn", "-f", "2"]
TUNE += [word for one in ("length=64", "rank=2", "eval_lengths=64") for word in ("--set", one)]


@pytest.mark.slow
def test_trained_parameters_are_shown_before_the_run_and_it_goes_on(call: Call, tmp_path: Path) -> None:
    more = ("--set", "train_embeddings=false", "--out", str(tmp_path), "--json")
    shown = call(*TUNE, "--steps", "2", *more)
    assert shown.code == 0
    assert "LoRA matrices" in shown.err
    assert "learning rate 0.001 (measured on the bundled models)" in shown.err
    start = shown.data["start"]
    assert set(start["parameters"]) == {"LoRA matrices", "norms"}
    assert start["learning_rate"] == 1e-3
    shown = call(*TUNE, "--steps", "3", *more, "--resume")
    assert "resumed from the checkpoint of step 2\n" in shown.err
    assert shown.data["start"]["resumed_from"] == 2
    assert [point["step"] for point in shown.data["curve"]] == [0, 1, 2, 3]
    card = (tmp_path / "README.md").read_text()
    assert "| steps | 3 |" in card
    assert "| held-out loss at 64 tokens |" in card


def test_an_interrupted_run_names_every_flag_of_its_command(call: Call, tmp_path: Path, monkeypatch) -> None:
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(hf_posenc.training, "finetune", interrupted, raising=False)
    shown = call(*TUNE, "--steps", "2", "--set", "train_embeddings=false", "--out", str(tmp_path / "run"))
    command = shown.err.split("resume with: ")[1]
    assert " --set train_embeddings=false " in command
    assert command.rstrip().endswith("--resume")


def test_the_learning_rate_is_looked_for_instead_of_the_run(call: Call, tmp_path: Path, monkeypatch) -> None:
    search = hf_posenc.training.find_learning_rate
    shorter = {**search.__kwdefaults__, "steps": 4, "lowest": 1e-5, "highest": 1e-3}
    monkeypatch.setattr(search, "__kwdefaults__", shorter)
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 400)
    out = tmp_path / "out"
    shown = call(*TUNE, "--find-learning-rate", "--text", str(tmp_path / "text.txt"), "--out", str(out))
    following = " ".join(shown.out.split()).partition("Next:")[2]
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
    known = (*hf_posenc.training.Training.__dataclass_fields__, TEXT_FIELD)
    assert settings_of(SimpleNamespace(), known) == {
        "length": 2048, "target_modules": ("q_proj", "v_proj"), "eval_lengths": (256, 1024), "bf16": True, "warmup": 0,
        "seed": 3, "text_field": "12",
    }  # fmt: skip
