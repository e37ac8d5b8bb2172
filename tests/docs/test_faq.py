"""Every command of the page of questions runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hf_posenc.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "faq.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"^\$ hf-posenc (.*)$", TEXT, re.MULTILINE))
def test_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line))
    assert not end.value.code
