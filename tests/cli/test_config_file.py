"""``--config``: a YAML file gives defaults, the command line overrides them, and a run repeats from its own file."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click import Option

import hf_posenc.training
from hf_posenc.cli.config_file import RUN_CONFIG, plain, write_config

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

BASE: Mapping[str, Any] = {
    "model": "starter:llama", "scheme": "rerope", "factor": 2, "option": {"window": 128}, "steps": 1, "length": 64,
    "eval-lengths": [64], "text": [argparse.__file__], "held-out": [textwrap.__file__],
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path):
    """Writes a configuration file."""

    def write(content: Any) -> str:
        path = tmp_path / "given.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return str(path)

    return write


def test_a_run_repeats_from_the_file_in_its_folder(call, written, tmp_path):
    first = call("finetune", "--config", written(dict(BASE)), "--seed", "3", "--out", str(tmp_path / "one"), "--json")
    assert first.code == 0, first.err
    stored = yaml.safe_load((tmp_path / "one" / RUN_CONFIG).read_text())
    assert stored.items() >= {"scheme": "rerope", "seed": 3, "steps": 1, "option": ["window=128"]}.items()
    assert stored["rank"] > 0, "defaults are kept too: a later version may choose others"
    assert "out" not in stored

    again = call("finetune", "--config", str(tmp_path / "one" / RUN_CONFIG), "--out", str(tmp_path / "two"), "--json")
    other = call(
        "finetune", "--config", str(tmp_path / "one" / RUN_CONFIG), "--seed", "4", "--out", str(tmp_path / "three"),
        "--json",
    )  # fmt: skip
    assert again.data["curve"] == first.data["curve"]
    assert other.data["curve"] != first.data["curve"], "the seed of the command line counts"


def test_epochs_on_the_command_line_replace_the_steps_of_the_file(call, written, tmp_path):
    out = tmp_path / "run"
    text = tmp_path / "short.txt"
    text.write_text(Path(argparse.__file__).read_text()[:6000])
    config = written({**BASE, "text": [str(text)]})
    run = call("finetune", "--config", config, "--epochs", "1", "--length", "512", "--out", str(out), "--json")
    assert run.code == 0, run.err
    stored = yaml.safe_load((out / RUN_CONFIG).read_text())
    assert stored["epochs"] == 1
    assert "steps" not in stored
    both = call("finetune", "--config", config, "--epochs", "1", "--steps", "2", "--out", str(tmp_path / "both"))
    assert both.code != 0, "of two on the command line, neither is preferred"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"config": "x"}, "no option for"),
        ({"steps": {"a": 1}}, "Write a single value"),
        ({"bf16": "no"}, "true or false"),
        ({"steps": "many"}, "--steps"),
        ("[1", "is not valid YAML"),
        ("just words", "Write names of options"),
        ("", "is empty. Write names of options"),
        ("a: !!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_refused_in_words(call, written, tmp_path, content, said):
    answer = call("finetune", "--model", "starter:llama", "--config", written(content), "--out", str(tmp_path / "run"))
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()


def test_the_file_of_a_run_serves_the_search_for_its_learning_rate(call, written, tmp_path, monkeypatch):
    defaults = {"steps": 2, "lowest": 1e-5, "highest": 1e-3, "progress": None}
    monkeypatch.setattr(hf_posenc.training.range_test, "__kwdefaults__", defaults)
    config = written({**BASE, "learning-rate": 1e-3})
    answer = call("find-learning-rate", "--config", config, "--out", str(tmp_path / "rate"), "--json")
    assert answer.code == 0, answer.err
    assert "sets learning-rate, which find-learning-rate does not use" in answer.err
    assert len(answer.data["rates"]) == 2


def test_a_missing_file_is_named(call, tmp_path):
    answer = call("finetune", "--config", str(tmp_path / "none.yaml"))
    assert answer.code == 2
    assert "none.yaml" in answer.err


@pytest.mark.parametrize("text", ["007", "1e3", "12", "-3", "٣"])
def test_values_are_read_back_as_they_were_given(text: str) -> None:
    written = yaml.safe_load(yaml.safe_dump({"option": plain(text)}))["option"]
    assert str(written) == text


def test_names_in_any_script_stay_readable_in_the_file(tmp_path):
    context = SimpleNamespace(
        info_name="finetune", params={"text": "Bücher"}, command=SimpleNamespace(params=[Option(["--text"])])
    )
    write_config(context, tmp_path)
    assert "text: Bücher" in (tmp_path / RUN_CONFIG).read_text(encoding="utf-8")
