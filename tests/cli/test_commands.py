"""Commands that run a model: arguments passed on, output, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest

from hf_posenc import checks
from hf_posenc.cli.app import app
from hf_posenc.cli.arguments import in_tokens
from hf_posenc.errors import PosEncError


def deviation(value: float) -> checks.Deviation:
    return checks.Deviation("cache", value, tolerance=1e-4, where="token 7", command="hf-posenc check …")


@pytest.mark.parametrize(("value", "code"), [(1e-6, 0), (1e-2, 4), (float("nan"), 4)])
def test_check_exits_with_4_if_a_check_fails(
    call: Callable, monkeypatch: pytest.MonkeyPatch, value: float, code: int
) -> None:
    monkeypatch.setattr(checks, "check_scheme", lambda *_, **__: [deviation(0.0), deviation(value)])
    words = ("check", "-m", "starter:llama", "-s", "rerope", "-f", "4")
    assert call(*words).code == code
    answer = call(*words, "--json")
    assert answer.code == code
    assert [row["failed"] for row in answer.data] == [False, code == 4]


@pytest.mark.parametrize(
    ("written", "tokens"), [("1024", 1024), ("1k", 1024), ("0.5K", 512), ("1,024", 1024), ("1m", 1024**2)]
)
@pytest.mark.parametrize("option", ["--target-length", "--target"])
def test_lengths_may_be_written_in_thousands(
    call: Callable, monkeypatch: pytest.MonkeyPatch, option: str, written: str, tokens: int
) -> None:
    """k is 1024."""
    asked: list[int] = []
    monkeypatch.setattr(checks, "check_scheme", lambda *_, **given: asked.append(given["target_length"]) or [])
    assert call("check", "-m", "starter:llama", "-s", "rerope", option, written).code == 0
    assert asked == [tokens]


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda one: one.name)
def test_every_option_that_is_a_length_is_parsed_as_one(command: Any) -> None:
    """What typer parses as an integer would refuse 1k."""
    for name, parameter in signature(command.callback, eval_str=True).parameters.items():
        kind, *given = get_args(parameter.annotation) or [None]
        if re.fullmatch(r"(.*_)?length|longest|target", name) and kind in (int, int | None):
            assert given[0].callback is in_tokens, name


@pytest.mark.parametrize("words", [("--target-length", "8x"), ("--trained-length", "0"), ("--target", "1.3")])
def test_what_is_no_length_is_refused_by_the_name_of_its_option(call: Callable, words: tuple[str, str]) -> None:
    answer = call("check", "-m", "starter:llama", "-s", "rerope", *words)
    assert answer.code == 2
    assert words[0].replace("--target", "--target-length", words[0] == "--target") in answer.err


def broken(case: checks.Case) -> checks.Deviation:
    raise RuntimeError("the flux is off")


@pytest.mark.parametrize("debug", [False, True])
def test_debug_shows_where_a_check_raised(call: Callable, monkeypatch: pytest.MonkeyPatch, debug: bool) -> None:
    """The other checks are measured, and the table and the exit code are the same."""
    monkeypatch.setitem(checks.CHECKS, "cache", replace(checks.CHECKS["cache"], function=broken))
    words = ("check", "-m", "starter:llama", "-s", "yarn", "-f", "2", "--check", "cache", "--check", "second_patch")
    answer = call(*words, "--json", *["--debug"] * debug)
    assert answer.code == 4
    assert [(row["check"], row["failed"]) for row in answer.data] == [("cache", True), ("second_patch", False)]
    assert "RuntimeError: the flux is off" in answer.data[0]["where"]
    assert "traceback" not in answer.data[0]
    assert ("in broken" in answer.err) == debug


@pytest.mark.slow
def test_check_on_a_live_model(call: Callable) -> None:
    answer = call("check", "-m", "starter:llama", "-s", "rerope", "-f", "4", "--json")
    assert answer.code == 0, answer.out
    assert {"cache", "batch", "effect"} <= {row["check"] for row in answer.data}


def test_eval_measures_and_writes(call: Callable, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="an extra")
    words = ["eval", "-m", "starter:llama", "-s", "yarn", "-f", "2", "-l", "256", "-t", "posenc_ppl", "--samples", "1"]
    answer = call(*words, "--out", str(tmp_path / "out.json"), "--json")
    assert answer.code == 0, answer.err
    rows = {row["metric"]: row for row in answer.data}
    assert rows["nll"]["length"] == 256
    assert rows["nll"]["scheme"] == "yarn"
    assert 0.5 < rows["nll"]["value"] < 6.0  # a trained model; its vocabulary alone would give ln 1536 = 7.3
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == answer.data


def test_demo_is_a_comparison(call: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def compare(model: str, schemes: str, progress: Callable[[float, str], None], **given: Any) -> Any:
        progress(0.5, "half")
        asked.update(model=model, schemes=schemes, **given)
        raise PosEncError("It ends here. Stop.")

    monkeypatch.setattr("hf_posenc.eval.compare", compare, raising=False)
    answer = call("demo", "--quick", "--out", str(tmp_path))
    assert (asked["model"], asked["out"], asked["samples"]) == ("starter:llama", tmp_path, 6)
    assert answer.err.startswith("half: 50 %\n")  # progress goes to stderr, one line where there is no terminal
