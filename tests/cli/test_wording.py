"""Errors on the command line speak of options, not of Python calls."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import hf_posenc
import hf_posenc.eval
import hf_posenc.patches
from hf_posenc.cli.wording import PHRASES

FOLDERS = [Path(package.__path__[0]) for package in (hf_posenc, hf_posenc.eval, hf_posenc.patches)]


def said() -> str:
    """All texts in the code of the package but the table's; those in several lines are joined."""
    found = []
    for path in (path for folder in FOLDERS for path in folder.rglob("*.py") if path.name != "wording.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_phrase_is_one_that_the_library_has() -> None:
    texts = said()
    for phrase in PHRASES:
        assert phrase in texts


def test_what_cannot_be_exported(call: Callable, tmp_path: Path) -> None:
    answer = call("export", "-m", "starter:llama", "-s", "rerope", "-f", "4", "--out", str(tmp_path / "plain"))
    assert answer.code == 1
    assert "take this checkpoint as it is" in answer.err
    assert "pretrained" not in answer.err
    assert not (tmp_path / "plain").exists()


def test_texts_that_are_too_short_and_the_warning_before(call: Callable, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    text = tmp_path / "short.txt"
    text.write_text("hello")
    words = ("-m", "starter:llama", "-s", "yarn", "-f", "2", "--text", str(text), "--held-out", str(text))
    answer = call("finetune", *words, "--out", str(tmp_path / "run"))
    assert answer.code == 2
    assert "Give more --text, or a shorter --length." in answer.err
    assert "Warning: 1 of the training documents are held out" in answer.err
    assert ".py:" not in answer.err
