"""Output of the quick commands, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest

import hf_posenc
from hf_posenc.cli.environment import variables
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import list_schemes, scheme_record

ESCAPE = "\x1b"


def test_version(call: Callable) -> None:
    assert call("--version").out == f"hf-posenc {hf_posenc.__version__}\n"


def test_list_names_every_scheme(call: Callable) -> None:
    answer = call("list")
    assert answer.code == 0
    for record in list_schemes():
        assert any(line.split()[0] == record.name for line in answer.out.splitlines())


def test_list_as_json_is_the_registry(call: Callable) -> None:
    assert {row["name"]: row["cache"] for row in call("list", "--json").data} == {
        r.name: r.cache for r in list_schemes()
    }


def test_list_for_one_model(call: Callable) -> None:
    names = {row["name"] for row in call("list", "--model", "bert", "--json").data}
    assert "alibi" in names
    assert "rerope" not in names  # it remaps a rotation, and BERT has none


def test_info_prints_formula_ranges_and_defaults(call: Callable) -> None:
    text = call("info", "yarn").out
    assert "2309.00071" in text
    beta = next(line for line in text.splitlines() if line.strip().startswith("beta_fast"))
    assert "number > 0" in beta
    assert beta.split()[-1] == "32.0"  # the paper's
    assert "'dim' or 'rotations'" in text


def test_info_by_alias(call: Callable) -> None:
    assert call("info", "rotary", "--json").data["name"] == "rope"


@pytest.mark.parametrize(
    "command", [[], ["list"], ["info"], ["check"], ["eval"], ["compare"], ["demo"], ["env"]], ids=str
)
def test_every_help_ends_with_examples(call: Callable, command: list[str]) -> None:
    lines = call(*command, "--help").out.rstrip().splitlines()
    examples = lines[lines.index("  Examples:") + 1 :]
    assert examples
    assert all(line.strip().startswith(" ".join(["hf-posenc", *command])) for line in examples)


@pytest.mark.parametrize("words", [["list"], ["info", "t5"], ["list", "--json"], ["--help"], ["info", "yarm"]], ids=str)
def test_no_escape_codes_without_a_terminal(call: Callable, words: list[str]) -> None:
    answer = call(*words)
    assert ESCAPE not in answer.out + answer.err


def test_foreign_strings_are_escaped(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = SchemeRecord("loud", aliases=("[bold]", f"{ESCAPE}[31m", ":warning:"), title="[/red]")
    monkeypatch.setattr("hf_posenc.cli.commands.list.list_schemes", lambda: [foreign])
    out = call("list").out
    assert "[bold]" in out
    assert ":warning:" in out
    assert "\\x1b[31m" in out
    assert ESCAPE not in out


def test_env_hides_secrets() -> None:
    seen = variables(
        {
            "HF_TOKEN": "one",
            "HF_HUB_USER_SECRET": "two",
            "HF_ENDPOINT": "https://me:three@mirror.example/x",
            "TOKENIZERS_PARALLELISM": "false",
            "PATH": "four",
        }.items()
    )
    assert not {"one", "two", "three", "four"} & set(
        " ".join(seen.values()).replace(":", " ").replace("@", " ").split()
    )
    assert seen["HF_ENDPOINT"] == "https://…@mirror.example/x"
    assert seen["TOKENIZERS_PARALLELISM"] == "false"


def test_env_shows_versions(call: Callable) -> None:
    import torch

    assert call("env", "--json").data["versions"]["torch"] == torch.__version__


def test_the_folder_that_torch_sets_itself_is_left_out() -> None:
    """A path of the machine, which would travel in every result."""
    given = {"TORCHINDUCTOR_CACHE_DIR": "/somewhere", "TORCH_HOME": "/elsewhere"}
    assert variables(given.items()) == {"TORCH_HOME": "/elsewhere"}


def test_a_text_that_is_the_description_as_well_is_printed_once(
    call: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a scheme of one's own, whose module has no text."""
    record = replace(scheme_record("yarn"), text="A penalty.", about="A penalty.")
    monkeypatch.setattr(import_module("hf_posenc.cli.commands.info"), "scheme_record", lambda name: record)
    assert call("info", "yarn").out.count("A penalty.") == 1


def test_options_within_a_name_are_passed_apart(call: Callable) -> None:
    """``compare`` takes them there; commands of one scheme do not."""
    answer = call("check", "-m", "starter:llama", "-s", "yarn:beta_fast=16,beta_slow=2", "-f", "2")
    assert answer.code == 2
    assert "--option beta_fast=16 --option beta_slow=2" in answer.err
