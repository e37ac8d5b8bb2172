"""A text in any format is trained on and measured on: the numbers do not depend on how it is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("lm_eval", reason="evaluation needs the extra `eval`")
pytest.importorskip("matplotlib", reason="comparisons draw with the extra `plot`")

from datasets import Dataset

from hf_posenc.eval.texts.measured_text import module_text

from .conftest import Call

TEXTS = [module_text(name) for name in ("heapq", "csv", "copy")]
MODEL = ("--model", "starter:llama")
EVAL = ("eval", *MODEL, "-l", "256", "--samples", "3", "--json")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same three documents in four forms, and one of them as a plain file."""
    folder = tmp_path_factory.mktemp("texts")
    dataset = Dataset.from_dict({"text": TEXTS})
    dataset.to_parquet(str(folder / "a.parquet"))
    dataset.save_to_disk(str(folder / "saved"))
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"n": n, "body": text}) for n, text in enumerate(TEXTS)))
    (folder / "books").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "books" / f"{number}.txt").write_text(text)
    (folder / "held.txt").write_text(module_text("bisect"))
    (folder / "one.txt").write_text("\f".join(TEXTS))
    return folder


FORMS = (
    ("a.parquet",),
    ("saved",),
    ("a.jsonl", "text_field=body"),
    ("books",),
    ("one.txt", r"document_separator=\f"),
)


def losses(call: Call, stored: Path, form: tuple[str, ...], *more: str) -> Any:
    name, *reading = form
    answer = call(*EVAL, "-t", "posenc_ppl", "--text", str(stored / name), *as_settings(reading), *more)
    assert answer.code == 0, answer.err
    return answer.data


@pytest.mark.slow
def test_evaluation_reads_every_form(call: Call, stored: Path) -> None:
    first, *others = (losses(call, stored, form) for form in FORMS)
    assert first[0]["value"] > 0
    assert all(other == first for other in others)


def as_settings(reading: Sequence[str]) -> list[str]:
    """Settings of reading as words of ``--set``."""
    return [word for setting in reading for word in ("--set", setting)]
