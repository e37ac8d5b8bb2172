"""``--config``: a YAML file gives defaults, the command line overrides them, and a run repeats from its own file."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_posenc.cli.config_file import RUN_CONFIG

from .conftest import Call

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

BASE: dict[str, Any] = {
    "model": "starter:llama", "scheme": "rerope", "factor": 2, "option": {"window": 128}, "steps": 1, "length": 64,
    "eval_lengths": [64], "text": [argparse.__file__], "held-out": [textwrap.__file__],
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], str]:
    """Writes a configuration file."""

    def write(content: Any) -> str:
        path = tmp_path / "given.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return str(path)

    return write


@pytest.mark.slow
def test_a_run_repeats_from_the_file_in_its_folder(call: Call, written: Callable[[Any], str], tmp_path: Path) -> None:
    first = call("finetune", "--config", written(BASE), "--set", "seed=3", "--out", str(tmp_path / "one"), "--json")
    assert first.code == 0, first.err
    kept = str(tmp_path / "one" / RUN_CONFIG)
    stored = yaml.safe_load(Path(kept).read_text())
    assert stored.items() >= {"scheme": "rerope", "steps": 1, "option": ["window=128"]}.items()
    assert {"length=64", "seed=3"} <= set(stored["set"])
    assert "out" not in stored
    again = call("finetune", "--config", kept, "--out", str(tmp_path / "two"), "--json")
    other = call("finetune", "--config", kept, "--set", "seed=4", "--out", str(tmp_path / "three"), "--json")
    assert again.data["curve"] == first.data["curve"]
    assert other.data["curve"] != first.data["curve"], "the seed of the command line counts"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"stepz": 3}, "There is no setting 'stepz'. Did you mean 'steps'"),
        ({"load-in-4bit": True}, "given.yaml sets load-in-4bit, which is gone. Write dtype: 4bit"),
        ({"load-in-4bit": False, "stepz": 3}, "no setting 'stepz'"),  # that of earlier versions
        ({"set": {"stepz": 3}}, "given.yaml"),
        ({"set": ["seed"]}, "given.yaml"),
        ({"config": "x"}, "'config'"),
        ({"steps": {"a": 1}}, "steps"),
        ({"steps": "many"}, "--steps"),
        ("[1", "YAML"),
        ("", "empty"),
        ("a: !!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_what_a_file_may_not_hold(
    call: Call, written: Callable[[Any], str], tmp_path: Path, content: Any, said: str
) -> None:
    answer = call("finetune", "--model", "starter:llama", "--config", written(content), "--out", str(tmp_path / "run"))
    assert answer.code == 2
    assert said in answer.err
    assert "--set" not in answer.err, "nothing was set on the command line"
    assert not (tmp_path / "run").exists()
    assert call("finetune", "--config", str(tmp_path / "none.yaml")).code == 2


def test_an_option_that_no_task_takes_is_named_with_its_file(call: Call, written: Callable[[Any], str]) -> None:
    words = ("eval", "--model", "starter:llama", "--lengths", "128")
    named = call(*words, "--config", written({"set": {"nonsense": 1}})).err
    assert "'nonsense'" in named
    assert "given.yaml" in named
    assert "--config" not in call(*words, "--set", "nonsense=1").err, "control: from the command line"
