"""The page of questions: short answers, each with a command, and every command runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hf_posenc.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "faq.md").read_text(encoding="utf-8")
ANSWERS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
LINES = 8
TAKES_LONG = re.compile("eval|compare|bench|probe|check")
"""Commands that run models for longer than some seconds."""


def lines() -> list[object]:
    """The commands of the page; those that take long are left to the whole suite."""
    found = re.findall(r"^\$ hf-posenc (.*)$", TEXT, re.MULTILINE)
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(line, marks=marks[bool(TAKES_LONG.match(line))], id=line[:40]) for line in found]


@pytest.mark.parametrize("question", ANSWERS)
def test_answers_are_short_and_show_it(question: str) -> None:
    assert question.endswith("?")
    prose, command = ANSWERS[question].split("```console\n", maxsplit=1)
    assert 0 < len(prose.strip().splitlines()) <= LINES
    assert command.startswith(("$ hf-posenc ", "$ python examples/"))


def test_the_questions_of_interviews_are_here() -> None:
    asked = " ".join(ANSWERS)
    for word in ("RoPE fail", "decoder know order", "base do", "values", "PI, NTK or YaRN", "sinks", "ALiBi or RoPE"):
        assert word in asked
    assert len(ANSWERS) > 20


@pytest.mark.slow
@pytest.mark.parametrize("line", lines())
def test_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line))
    assert not end.value.code
