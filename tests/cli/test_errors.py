"""Invalid arguments: message, stream and exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_posenc import errors
from hf_posenc.cli import main
from hf_posenc.cli.arguments import model_named, scheme_options
from hf_posenc.cli.bad_argument import BadArgument

WRONG = {
    "command": (["lst"], 2, "'list'"),
    "flag": (["list", "--jsn"], 2, "--json"),
    "scheme": (["info", "yarm"], 2, "'yarn'"),
    "model type": (["list", "--model", "lama"], 2, "'llama'"),
    "starter": (["check", "-m", "starter:lama", "-s", "yarn"], 2, "'llama'"),
    "folder": (["check", "-m", "./absent", "-s", "yarn"], 2, "./absent"),
    "missing option": (["check", "-s", "yarn"], 2, "--model"),
    "scheme of check": (["check", "-m", "starter:llama", "-s", "yarm"], 2, "'yarn'"),
    "option name": (["eval", "-m", "starter:llama", "-s", "yarn", "-o", "beta_fst=3"], 2, "beta_fast"),
    "option range": (["eval", "-m", "starter:llama", "-s", "yarn", "-o", "beta_fast=-3"], 2, "greater than 0"),
    "option without scheme": (["eval", "-m", "starter:llama", "-o", "beta_fast=3"], 2, "--scheme"),
    "option without value": (["eval", "-m", "starter:llama", "-s", "yarn", "-o", "beta_fast"], 2, "NAME=VALUE"),
    "dtype that torch lacks": (["eval", "-m", "starter:llama", "--dtype", "float3"], 2, "'float3'"),
    "dtype that is not floating": (["merge", "-m", "absent", "--out", "merged", "--dtype", "int8"], 2, "'int8'"),
    "factor that is no number": (["check", "-m", "starter:llama", "-s", "yarn", "-f", "two"], 2, "--factor"),
}


@pytest.mark.parametrize(("words", "code", "hint"), WRONG.values(), ids=WRONG)
def test_unknown_argument(call: Callable, words: list[str], code: int, hint: str) -> None:
    answer = call(*words)
    assert answer.code == code
    assert answer.out == ""
    assert hint in answer.err
    assert "Traceback" not in answer.err


def test_folder_without_a_model(call: Callable, tmp_path: Path) -> None:
    answer = call("check", "-m", str(tmp_path), "-s", "yarn")
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert answer.err.count("\n") <= 3


def test_an_impossible_length(call: Callable) -> None:
    answer = call("check", "-m", "starter:llama", "-s", "yarn", "-f", "0.5")
    assert answer.code == 2
    assert "at least 1, got 0.5" in answer.err


def test_debug_lets_the_error_through() -> None:
    with pytest.raises(errors.UnknownScheme):
        main(["info", "yarm", "--debug"])


def test_an_unexpected_error_asks_for_a_report(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the flux is off\nline two")

    monkeypatch.setattr("hf_posenc.cli.commands.list.list_schemes", broken)
    answer = call("list")
    assert answer.code == 1
    assert answer.err.startswith("Error: RuntimeError: the flux is off. ")
    assert "--debug" in answer.err
    assert "hf-posenc env" in answer.err


def test_interrupt_ends_with_130(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_posenc.cli.commands.list.list_schemes", interrupted)
    assert call("list").code == 130


def test_an_interrupt_behind_another_error_is_one(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ModuleNotFoundError("Could not import module") from error

    monkeypatch.setattr("hf_posenc.cli.commands.list.list_schemes", interrupted)
    assert call("list").code == 130


def test_model_words(tmp_path: Path) -> None:
    assert model_named(str(tmp_path)).model == str(tmp_path)
    assert Path(model_named("starter:llama").model, "config.json").is_file()
    with pytest.raises(BadArgument):
        model_named("a/b/c")
    with pytest.raises(errors.ModelNotFound, match="Hub cannot be asked"):
        model_named("owner/name")


def test_option_words() -> None:
    assert scheme_options("yarn", ["beta_fast=16", "ramp=rotations", "truncate=false"]) == {
        "beta_fast": 16,
        "ramp": "rotations",
        "truncate": False,
    }
