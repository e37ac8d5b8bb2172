"""``--config``: a YAML file gives defaults, the command line overrides them, and a run repeats from its own file."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click import Option

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
    first = call(
        "finetune", "--config", written(dict(BASE)), "--set", "seed=3", "--out", str(tmp_path / "one"), "--json"
    )
    assert first.code == 0, first.err
    stored = yaml.safe_load((tmp_path / "one" / RUN_CONFIG).read_text())
    assert stored.items() >= {"scheme": "rerope", "steps": 1, "option": ["window=128"]}.items()
    assert {"length=64", "seed=3"} <= set(stored["set"])
    assert "out" not in stored

    again = call("finetune", "--config", str(tmp_path / "one" / RUN_CONFIG), "--out", str(tmp_path / "two"), "--json")
    other = call(
        "finetune", "--config", str(tmp_path / "one" / RUN_CONFIG), "--set", "seed=4", "--out", str(tmp_path / "three"),
        "--json",
    )  # fmt: skip
    assert again.data["curve"] == first.data["curve"]
    assert other.data["curve"] != first.data["curve"], "the seed of the command line counts"


def test_epochs_on_the_command_line_replace_the_steps_of_the_file(call, written, tmp_path):
    out = tmp_path / "run"
    text = tmp_path / "short.txt"
    text.write_text(Path(argparse.__file__).read_text()[:6000])
    config = written({**BASE, "text": [str(text)]})
    run = call("finetune", "--config", config, "--set", "epochs=1", "--set", "length=512", "--out", str(out), "--json")
    assert run.code == 0, run.err
    stored = yaml.safe_load((out / RUN_CONFIG).read_text())
    assert "epochs=1" in stored["set"]
    assert "steps" not in stored
    both = call("finetune", "--config", config, "--set", "epochs=1", "--steps", "2", "--out", str(tmp_path / "both"))
    assert both.code != 0, "of two on the command line, neither is preferred"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"config": "x"}, "no option for"),
        ({"steps": {"a": 1}}, "Write a single value"),
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


COMPARED: Mapping[str, Any] = {
    "model": "starter:llama", "schemes": ["unpatched", "yarn:beta_fast=16,factor=2"], "lengths": [128, 256],
    "tasks": "posenc_docs", "samples": 1, "text": [argparse.__file__, textwrap.__file__], "metadata": {"from_start": 1},
}  # fmt: skip


@pytest.fixture
def compared(call, written, tmp_path):
    """Runs ``compare`` with a file that differs from `COMPARED` in some options, and words behind it."""
    pytest.importorskip("lm_eval", reason="an extra")
    pytest.importorskip("matplotlib", reason="an extra")

    def run(*words: str, **changed: Any):
        return call("compare", "--config", written({**COMPARED, **changed}), "--out", str(tmp_path / "out"), *words)

    return run


def test_a_comparison_from_a_file(call, compared):
    answer = compared("--seed", "3", "--lengths", "128", "--samples", "16", "--json", samples=2)
    assert answer.code == 0, answer.err
    about = answer.data["about"]
    assert [scheme["label"] for scheme in about["schemes"]] == ["unpatched", "yarn:beta_fast=16,factor=2"]
    assert (about["lengths"], about["seed"], about["samples"]) == ([128], 3, 16), "the command line counts"
    assert about["options"] == {"from_start": 1}
    assert "--config" not in about["command"]
    again = call(*shlex.split(about["command"])[1:], "--json")
    assert again.data == answer.data, "the command in the report repeats the run without the file"


def test_a_list_of_numbers_where_the_command_line_has_commas(compared):
    answer = compared("--json", tasks="posenc_docs,posenc_passkey", depths=[0.25, 1], keys=1, lengths=[256])
    assert answer.code == 0, answer.err
    assert answer.data["about"]["depths"] == [0.25, 1.0]
    refused = compared(seed=[1, 2])
    assert refused.code == 2
    assert "Write a single value" in refused.err


def test_options_in_a_file_that_no_task_reads_are_refused(compared, tmp_path):
    answer = compared(keys=4)
    assert answer.code == 2
    assert "None of the tasks posenc_docs reads keys" in answer.err
    answer = compared("--merge", str(tmp_path / "a"), "--merge", str(tmp_path / "b"))
    assert answer.code == 2
    assert "--model has no effect beside --merge" in answer.err
    assert not (tmp_path / "out").exists()


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
