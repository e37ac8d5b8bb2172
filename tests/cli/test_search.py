"""``hf-posenc search``: arguments passed on, output, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hf_posenc.insight.search
from hf_posenc.insight.search.result import SearchResult
from hf_posenc.schemes.entry import Entry

ABOUT: dict[str, Any] = {
    "model": "starter:llama", "target_length": 1024, "trained_length": 256, "text": ["own.txt", "more.txt"],
    "eval_text": "other.txt", "held_out": "another text", "seconds": 62.0, "cut": True,
    "plan": {"budget": 90.0, "held_out": 16}, "command": "hf-posenc search", "compare": [],
}  # fmt: skip
CHOSEN = Entry("rerope:window=96", "rerope", {"window": 96})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the library was asked."""
    seen: dict[str, Any] = {}

    def search(model: Any, target: str, progress: Callable, **given: Any) -> SearchResult:
        progress(0.5, "half")
        seen.update(model=model, target=target, **given)
        return SearchResult(ABOUT, (), CHOSEN, "rerope")

    monkeypatch.setattr(hf_posenc.insight.search, "search", search, raising=False)
    return seen


def test_arguments_are_forwarded(call: Callable, asked: dict[str, Any], tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("words", encoding="utf-8")
    words = ["--target-length", "1k", "--budget", "90s", "--text", str(text), "--all-keys", "--seed", "3"]
    answer = call("search", "-m", "starter:llama", *words, "--out", str(tmp_path))
    assert answer.code == 0
    assert (asked["target"], asked["budget"], asked["all_keys"], asked["seed"]) == ("1k", "90s", True, 3)
    assert asked["text"] is not None
    assert asked["eval_text"] is None
    assert asked["command"].startswith("hf-posenc search --model starter:llama")
    assert 'patch_model(model, "rerope", target_length=1024, window=96)' in answer.out
    assert "--schemes unpatched,rerope:window=96 --lengths 256,1024" in answer.out
    assert "chosen on own.txt, more.txt; judged on another text (other.txt)" in answer.out
    assert "slower than when the plan was made" in answer.out


def test_the_printed_comparison_loads_and_reads_the_same(call: Callable, asked: dict[str, Any], tmp_path: Path) -> None:
    own, other = tmp_path / "own.jsonl", tmp_path / "other.txt"
    own.write_text('{"body": "words"}', encoding="utf-8")
    other.write_text("words", encoding="utf-8")
    read = ["--text", str(own), "--text-field", "body", "--eval-text", str(other), "--document-separator", "\\n\\n"]
    call("search", "-m", "starter:llama", "--target-length", "1k", *read, "--dtype", "float32", "--device", "cpu")
    loaded = ["--dtype", "float32", "--device", "cpu"]
    assert asked["compare"] == [*loaded, "--text", str(other), "--document-separator", "\\n\\n"]  # txt has no fields


def test_without_a_second_text_the_printed_comparison_reads_the_first(
    call: Callable, asked: dict[str, Any], tmp_path: Path
) -> None:
    """It measured the default text, on which nothing had been chosen or judged."""
    own = tmp_path / "own.jsonl"
    own.write_text('{"body": "words"}', encoding="utf-8")
    call("search", "-m", "starter:llama", "--target-length", "1k", "--text", str(own), "--text-field", "body")
    words = ["--text", str(own), "--text-field", "body"]
    assert asked["compare"] == words
    about = ABOUT | {"held_out": "the last third of the same text, set aside", "compare": words}
    found = SearchResult(about, (), CHOSEN, "rerope")
    assert f"{' '.join(words)} --schemes unpatched,rerope:window=96 --lengths 256,1024" in found.command
    assert "measures the whole text, of which the choice was made on the first two thirds" in str(found)
    assert "whole text" not in str(SearchResult(ABOUT, (), CHOSEN, "rerope"))


def test_json_is_json(call: Callable, asked: dict[str, Any]) -> None:
    found = call("search", "-m", "starter:llama", "--target-length", "1024", "--json").data
    assert found["chosen"]["options"] == {"window": 96}


@pytest.mark.parametrize(
    ("target", "words", "said"),
    [
        ("1k", ("--budget", "soon"), "a duration such as 10m"),
        ("1k", ("--text-field", "body"), "--text"),
        ("1.5", (), "whole number"),
    ],
)
def test_wrong_arguments_are_refused(call: Callable, target: str, words: tuple[str, ...], said: str) -> None:
    answer = call("search", "-m", "starter:llama", "--target-length", target, *words)
    assert answer.code != 0
    assert said in answer.err
