"""The command line, called in this process: a fresh interpreter for every call would cost seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from hf_posenc.cli import main


@dataclass(frozen=True)
class Answer:
    """What a call left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str) -> Answer:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        seen = capsys.readouterr()
        return Answer(int(end.value.code or 0), seen.out, seen.err)

    return run
