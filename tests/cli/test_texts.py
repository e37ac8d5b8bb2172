"""A text in any format is trained on and measured on: the numbers do not depend on how it is stored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("lm_eval", reason="evaluation needs the extra `eval`")
pytest.importorskip("matplotlib", reason="comparisons draw with the extra `plot`")

from datasets import Dataset

from hf_posenc.eval.comparison.identity import files_digest
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.eval.texts.stdlib_source import module_text

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
    ("a.jsonl", "--text-field", "body"),
    ("books",),
    ("one.txt", "--document-separator", r"\f"),
)


def losses(call: Call, stored: Path, form: tuple[str, ...], *more: str) -> Any:
    name, *reading = form
    answer = call(*EVAL, "-t", "posenc_ppl", "--text", str(stored / name), *reading, *more)
    assert answer.code == 0, answer.err
    return answer.data


def test_evaluation_reads_every_form(call: Call, stored: Path) -> None:
    first, *others = (losses(call, stored, form) for form in FORMS)
    assert first[0]["value"] > 0
    assert all(other == first for other in others)


def test_several_texts_are_several_documents(call: Call, stored: Path) -> None:
    """All are measured on, not the last alone; the order of windows is that of the texts."""
    one, two = (stored / "books" / f"{n}.txt" for n in (0, 1))
    both = losses(call, stored, ("books/0.txt",), "--text", str(two))
    assert both == losses(call, stored, ("books/0.txt", "--text", str(two)))
    alone = [losses(call, stored, (f"books/{n}.txt",)) for n in (0, 1)]
    assert both not in alone
    assert one.exists()


def as_settings(reading: Sequence[str]) -> list[str]:
    """Options of reading as `finetune` takes them."""
    names = [name.removeprefix("--").replace("-", "_") for name in reading[::2]]
    return [word for name, value in zip(names, reading[1::2], strict=True) for word in ("--set", f"{name}={value}")]


def curve(call: Call, stored: Path, out: Path, form: tuple[str, ...], *more: str) -> Any:
    name, *reading = form
    answer = call(
        "finetune", *MODEL, "--scheme", "yarn", "--factor", "2", "--text", str(stored / name), *as_settings(reading),
        "--set", "length=64", "--steps", "2", "--set", "eval_every=2", "--set", "eval_lengths=64", "--out",
        str(out), "--json", *more,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    return answer.data["curve"]


def test_fine_tuning_reads_every_form(call: Call, stored: Path, tmp_path: Path) -> None:
    first, *others = (curve(call, stored, tmp_path / str(n), form) for n, form in enumerate(FORMS))
    assert len(first) == 3
    assert all(other == first for other in others)
    streamed = [
        curve(call, stored, tmp_path / f"s{n}", form, "--set", "streaming=true") for n, form in enumerate(FORMS[:2])
    ]
    assert streamed[0] == streamed[1]
    assert streamed[0] != first  # in the order of the text


def test_options_of_reading_need_to_fit_one_text(call: Call, stored: Path, tmp_path: Path) -> None:
    """Records to train on and a plain text to measure on: a column and a separator, each for one of them."""
    held_out = ("--held-out", str(stored / "one.txt"), "--set", r"document_separator=\f")
    found = curve(call, stored, tmp_path / "one", ("a.jsonl", "--text-field", "body"), *held_out)
    other = curve(call, stored, tmp_path / "two", ("a.parquet",), "--held-out", str(stored / "saved"))
    assert found == other


def compared(call: Call, out: Path, *texts: str) -> Any:
    given = [word for text in texts for word in ("--text", text)]
    answer = call(
        "compare", *MODEL, "-s", "unpatched", "-l", "256", "-t", "posenc_ppl", "--samples", "2", *given, "--out",
        str(out), "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    return answer.data


def test_stored_cells_know_the_text_and_not_its_name(call: Call, stored: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = compared(call, out, str(stored / "held.txt"))
    shutil.copy(stored / "held.txt", tmp_path / "other name.txt")
    again = compared(call, out, str(tmp_path / "other name.txt"))
    assert again["cells"] == first["cells"]
    assert first["about"]["digests"]["text"] == files_digest(stored / "held.txt")  # as earlier versions wrote it
    two = compared(call, out, str(stored / "a.parquet"), str(stored / "held.txt"))
    assert two["about"]["text"] == [str(stored / "a.parquet"), str(stored / "held.txt")]
    same = compared(call, out, str(stored / "saved"), str(stored / "held.txt"))
    assert [cell["key"] for cell in same["cells"]] == [cell["key"] for cell in two["cells"]]
    assert two["cells"][0]["key"] != first["cells"][0]["key"]


def test_digests_tell_documents_apart(stored: Path) -> None:
    digests = {form[0]: measured_text(stored / form[0]).digest for form in FORMS[:2]}
    assert len(set(digests.values())) == 1
    joined = Dataset.from_dict({"text": ["".join(TEXTS)]})
    moved = Dataset.from_dict({"text": [TEXTS[0] + TEXTS[1][:1], TEXTS[1][1:], TEXTS[2]]})
    turned = Dataset.from_dict({"text": TEXTS[::-1]})
    others = {measured_text(dataset).digest for dataset in (joined, moved, turned)}
    assert len(others | set(digests.values())) == 4


def test_probe_reads_records(call: Call, stored: Path) -> None:
    probed = ("probe", *MODEL, "-l", "64", "--samples", "2", "--rows", "4", "--scored", "8", "--json")
    first, second = (call(*probed, "--text", str(stored / name)) for name in ("a.parquet", "books"))
    assert first.code == 0, first.err
    assert first.data == second.data


REFUSED = {
    "no such column": ([*EVAL, "--text", "TEXTS/a.jsonl"], 1, "'text' in line 1 of a.jsonl, only body, n"),
    "no text to read": ([*EVAL, "--text-field", "body"], 2, "--text-field has an effect with a text only"),
    "no text to split": ([*EVAL, "--document-separator", "x"], 2, "--document-separator has an effect"),
    "read by no task": ([*EVAL, "--text", "TEXTS/held.txt", "-t", "posenc_fwe"], 2, "None of the tasks"),
    "short documents": ([*EVAL, "--text", "TEXTS/books", "-l", "60000"], 1, r"and 0 of 3 are as long; the longest has"),
    "no conversation": (["finetune", *MODEL, "-s", "yarn", "-f", "2", "--text", "TEXTS/a.jsonl"], 1, "only body, n"),
    "nothing to stream": (["finetune", *MODEL, "-s", "yarn", "--set", "streaming=true"], 2, "streaming reads a text"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "code", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(words: list[str], code: int, message: str, call: Call, stored: Path, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")] if words[0] == "finetune" else []
    answer = call(*(word.replace("TEXTS", str(stored)) for word in words), *out)
    assert (answer.code, message in answer.err) == (code, True), answer.err
    assert not (tmp_path / "out").exists()
