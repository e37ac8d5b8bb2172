"""Settings that no chosen task reads are refused; which task reads which settings, and the text, is observed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="evaluation needs the extra `eval`")

from hf_posenc.eval.catalogue import SETTINGS, TASKS, read_by, task_files
from hf_posenc.eval.tasks.sweep import Sweep
from hf_posenc.eval.texts.measured_text import MeasuredText, module_text
from hf_posenc.texts import Document

HELD_OUT = "posenc_held_out"  # reads the record of a run: tests/cli/test_held_out.py


class Spy(MeasuredText):
    """A text that tells when it is read."""

    def __init__(self) -> None:
        self.label, self.digest, self.read = "spy", "spy", False

    @property
    def documents(self) -> Any:  # type: ignore[override]
        self.read = True
        return (Document("spy", module_text("bisect") * 30),)


@pytest.mark.parametrize("task", sorted({*task_files()} - {"posenc_qa_file", HELD_OUT}))
def test_what_tasks_read_is_listed(task: str, framed_tokenizer, monkeypatch) -> None:
    """The settings, and the text."""
    from lm_eval.tasks import TaskManager

    read: set[str] = set()

    def watched(sweep: Any, name: str) -> Any:
        read.update({name} & set(SETTINGS))
        return object.__getattribute__(sweep, name)

    monkeypatch.setattr(Sweep, "__getattribute__", watched)
    spy = Spy()
    metadata = {"lengths": [2048], "text": spy, "tokenizer": framed_tokenizer, "samples": 2, "keys": 1, "scored": 8}
    TaskManager(include_path=[str(TASKS)], include_defaults=False, metadata=metadata).load([task])
    assert read == {name for name in SETTINGS if read_by(name, [task])}
    assert spy.read == bool(read_by("text", [task]))
