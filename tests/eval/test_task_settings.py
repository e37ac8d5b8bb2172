"""Settings of a sweep that no chosen task reads are refused; which tasks read which is observed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="evaluation needs the extra `eval`")

from hf_posenc.cli import main
from hf_posenc.errors import UnknownOption
from hf_posenc.eval.catalogue import FILE_TASKS, TASKS_READING, check_settings_read, members, own_tasks
from hf_posenc.eval.report.remarks import method
from hf_posenc.eval.task_index import TASKS
from hf_posenc.eval.tasks import base
from hf_posenc.eval.tasks.sweep import Sweep
from hf_posenc.eval.texts.stdlib_source import module_text

SINGLE = [task for task in own_tasks() if not members(task)]


class Watched(Sweep):
    """Settings that tell which of them were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in TASKS_READING:
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("task", [task for task in SINGLE if task not in FILE_TASKS])
def test_the_tasks_that_read_a_setting_are_listed(task: str, framed_tokenizer, monkeypatch, tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    def unwatched(sweep: Any) -> dict[str, Any]:
        before = set(vars(sweep).get("read", ()))
        found = dataclasses.asdict(sweep)
        vars(sweep)["read"] = before
        return found

    monkeypatch.setattr(base, "Sweep", Watched)
    monkeypatch.setattr(base, "asdict", unwatched)
    (tmp_path / "text.txt").write_text(module_text("bisect") * 30)
    metadata = {"lengths": [2048], "text": str(tmp_path / "text.txt"), "tokenizer": framed_tokenizer, "samples": 2,
                "keys": 1, "scored": 8}  # fmt: skip
    loaded = TaskManager(include_path=[str(TASKS)], include_defaults=False, metadata=metadata).load([task])
    (found,) = loaded["tasks"].values()
    assert vars(found.sweep)["read"] == {name for name, tasks in TASKS_READING.items() if task in tasks}


def test_every_task_reads_some() -> None:
    assert set().union(*TASKS_READING.values()) == set(SINGLE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "-t", "posenc_ppl", "--set", "keys=3"], "posenc_ppl reads keys"),
        (["eval", "-t", "posenc_ppl", "--set", "depths=0.5"], "posenc_ppl reads depths"),
        (["eval", "-t", "posenc_cwe", "-t", "posenc_fwe", "--samples", "16"], "posenc_cwe, posenc_fwe reads samples"),
        (["compare", "-s", "yarn", "-t", "posenc_passkey", "--set", "scored=8"], "posenc_passkey reads scored"),
    ],
)
def test_settings_that_no_task_reads_are_refused(words: list[str], said: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "-m", "starter:llama", "-l", "64", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert f"None of the tasks {said}" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_settings_that_a_task_reads_or_may_read() -> None:
    check_settings_read(["keys", "samples"], [])  # loss and passkeys
    check_settings_read(["keys"], ["posenc_longctx"])
    check_settings_read(["keys"], ["somebody's"])
    with pytest.raises(UnknownOption):
        check_settings_read(["keys"], ["posenc_ppl"])


def test_a_report_says_how_what_ran_was_measured() -> None:
    about = {
        "model": "m", "trained_length": 64, "lengths": [64], "factor_per_length": False, "text": "book.txt",
        "samples": 3, "scored": 8, "keys": 5, "depths": [0.5], "seed": 0, "limit": None,
    }  # fmt: skip

    def said(*tasks: str) -> str:
        return " ".join(method(about | {"tasks": list(tasks)}))

    assert "book.txt" in said("posenc_ppl")
    assert "depths" not in said("posenc_ppl")
    assert "keys 5: posenc_passkey. depths 50 %: posenc_passkey." in said("posenc_passkey")
    assert "scored" not in said("posenc_passkey")
    assert "keys 5: posenc_cwe." in said("posenc_cwe")
    assert "book.txt" not in said("posenc_cwe")
