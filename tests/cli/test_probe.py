"""``hf-posenc probe``: output, files, refusals."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = ("--samples", "2", "--rows", "16", "--length", "128")


@pytest.mark.slow
def test_json_is_complete(call: Callable) -> None:
    answer = call("probe", "--model", "starter:llama", "--scheme", "yarn", "--factor", "2", *SMALL, "--json")
    assert answer.code == 0
    found = answer.data
    assert [variant["label"] for variant in found["variants"]] == ["unpatched", "yarn"]
    variant = found["variants"][0]
    assert len(variant["heads"]) == 4 * 8
    assert len(variant["attention_mass"]) == 4
    for layer in variant["attention_mass"]:
        for head in layer:
            assert sum(head) == pytest.approx(1.0, abs=1e-5)
    assert variant["loss_by_context"]["used_length"] in (64, 128)
    assert len(found["moved"]) == 4


@pytest.mark.slow
def test_tables_and_plots(call: Callable, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plot")
    answer = call("probe", "--model", "starter:gpt2", *SMALL, "--out", str(tmp_path / "out"))
    assert answer.code == 0
    assert "heads use position" in answer.out
    assert "used length" in answer.out
    assert "not above the lowest by more than 2 standard errors" in " ".join(answer.out.split())
    for name in ("distance", "heads", "sinks", "loss"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "probe.json").read_text())["trained_length"] == 256


def test_sinks_are_fewer_than_the_tokens_of_the_default_length(call: Callable) -> None:
    answer = call("probe", "--model", "starter:gpt2", "--sinks", "256")
    assert answer.code == 2
    assert "sinks must be fewer than the 256 tokens of a text, got 256." in answer.err


@pytest.mark.slow
def test_several_sinks_are_called_so(call: Callable) -> None:
    """Also where most of a head's weight is on them, which 120 of 128 tokens get."""
    one, four, many = (
        call("probe", "--model", "starter:gpt2", *SMALL, "--sinks", count).out for count in ("1", "4", "120")
    )
    assert "weight on the first token by layer" in " ".join(one.split())
    assert "weight on the first 4 tokens by layer" in " ".join(four.split())
    for out in (four, many):
        assert "first token" not in " ".join(out.split())
    assert many.count("first 120 tokens") > 2  # heading, summary and heads


def test_without_matplotlib_it_says_so_before_it_works(
    call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    answer = call("probe", "--model", "starter:llama", "--out", str(tmp_path / "out"))
    assert answer.code == 1
    assert "hf-posenc[plot]" in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--factor 4", "--factor"),
        ("--scheme yarm", "'yarn'"),
        ("--option window=3", "window"),
        ("--device cuda:99", "device"),
        ("--sinks 500 --length 256", "--sinks must be fewer than the 256 tokens of --length, got 500."),
        ("--sinks 128 --length 128", "sinks"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(call: Callable, words: str, hint: str) -> None:
    answer = call("probe", "--model", "starter:llama", *words.split())
    assert answer.code == 2
    assert answer.err.startswith("Error: ")
    assert hint in answer.err


def test_help_ends_with_examples(call: Callable) -> None:
    assert "hf-posenc probe --model starter:llama --out results/probe" in call("probe", "--help").out
