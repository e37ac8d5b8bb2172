"""Settings of a sweep that no chosen task reads are refused; which tasks read which is observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="evaluation needs the extra `eval`")

from hf_posenc.cli import main
from hf_posenc.eval.catalogue import FILE_TASKS, SETTINGS, TASKS, members, own_tasks, read_by
from hf_posenc.eval.tasks.sweep import Sweep
from hf_posenc.eval.texts.measured_text import module_text

SINGLE = [task for task in own_tasks() if not members(task)]


HELD_OUT = "posenc_held_out"  # reads the record of a run: tests/cli/test_held_out.py


@pytest.mark.parametrize("task", [task for task in SINGLE if task not in (*FILE_TASKS, HELD_OUT)])
def test_the_tasks_that_read_a_setting_are_listed(task: str, framed_tokenizer, monkeypatch, tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    read: set[str] = set()

    def watched(sweep: Any, name: str) -> Any:
        read.update({name} & set(SETTINGS))
        return object.__getattribute__(sweep, name)

    monkeypatch.setattr(Sweep, "__getattribute__", watched)
    (tmp_path / "text.txt").write_text(module_text("bisect") * 30)
    metadata = {"lengths": [2048], "text": str(tmp_path / "text.txt"), "tokenizer": framed_tokenizer, "samples": 2,
                "keys": 1, "scored": 8}  # fmt: skip
    loaded = TaskManager(include_path=[str(TASKS)], include_defaults=False, metadata=metadata).load([task])
    assert len(loaded["tasks"]) == 1
    assert read == {name for name in SETTINGS if read_by(name, [task])}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "-t", "posenc_ppl", "--set", "keys=3"], "posenc_ppl reads keys"),
        (["compare", "-s", "yarn", "-t", "posenc_passkey", "--set", "scored=8"], "posenc_passkey reads scored"),
    ],
)
def test_settings_that_no_task_reads_are_refused(words: list[str], said: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "-m", "starter:llama", "-l", "64", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert f"None of the tasks {said}" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
