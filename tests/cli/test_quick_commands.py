"""Commands that answer at once: ``list``, ``info``, ``env``, ``--version``, and every ``--help``."""

from __future__ import annotations

import io
import re

import pytest
import typer

from hf_posenc import cite
from hf_posenc.cli.app import COMMANDS, app
from hf_posenc.cli.commands.info import variables
from hf_posenc.cli.output import ProgressLines
from hf_posenc.core.record import SchemeRecord
from hf_posenc.insight import families
from hf_posenc.schemes.registry import list_schemes

from .conftest import Call

ESCAPE = "\x1b"
CLICK = typer.main.get_command(app)


def test_list_is_the_registry(call: Call) -> None:
    lines = call("list").out.splitlines()
    assert {record.name for record in list_schemes()} <= {line.split()[0] for line in lines if line.strip()}
    rows = {row["name"]: row["cache"] for row in call("list", "--json").data}
    assert rows == {record.name: record.cache for record in list_schemes()}
    bert = {row["name"] for row in call("list", "--model", "bert", "--json").data}
    assert "alibi" in bert
    assert "rerope" not in bert, "it remaps a rotation, and BERT has none"


def test_foreign_strings_are_escaped(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = SchemeRecord("loud", aliases=("[bold]", f"{ESCAPE}[31m"), title="[/red]")
    monkeypatch.setattr("hf_posenc.cli.commands.info.list_schemes", lambda: [foreign])
    out = call("list").out
    assert "[bold]" in out
    assert "\\x1b[31m" in out
    assert ESCAPE not in out


def test_env_shows_versions_and_hides_secrets(call: Call) -> None:
    import torch

    assert call("env", "--json").data["versions"]["torch"] == torch.__version__
    given = {"HF_TOKEN": "one", "HF_ENDPOINT": "https://me:three@mirror.example/x", "PATH": "four"}
    assert variables(given) == {"HF_TOKEN": "(set, hidden)", "HF_ENDPOINT": "https://…@mirror.example/x"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_plain(call: Call, name: str) -> None:
    """Its examples are commands of this name whose options exist, and no option has a developer's type."""
    shown = call(name, "--help").out
    head, _, examples = shown.partition("Examples:\n")
    lines = [line.split() for line in examples.splitlines() if line.strip()]
    assert lines
    command = CLICK.commands[name]  # type: ignore[attr-defined]
    assert not command.get_short_help_str(66).endswith("..."), "cut in a terminal of 80 characters"
    known = {word for one in command.params for word in (*one.opts, *one.secondary_opts)}
    for line in lines:
        assert line[:2] == ["hf-posenc", name]
        assert {word for word in line if word.startswith("-")} <= known
    assert not re.search(r"<\w|list\[|x>=| INTEGER| FLOAT", head), head


def test_the_time_left_waits_until_it_is_known_and_parts_end_with_their_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = ProgressLines(stream)
    for at, done, doing in (
        (100, None, "read: 1"), (101, None, "read: 2"), (200, 0.0, "loading"), (300, 0.0, "a"), (310, 0.01, "a"),
        (400, 0.1, "a"), (401, 0.11, "b"), (402, 0.02, "generating"), (500, 1.0, "generating"),
    ):  # fmt: skip
        now[0] = float(at)
        lines(done, doing)
    lines.close()
    assert stream.getvalue().splitlines() == [
        "read: 1", "read: 2", "loading: 0 %", "a: 0 %", "a: 10 %, 0:15:00 left", "b: 11 %, 0:13:37 left",
        "generating: 100 %",
    ]  # fmt: skip


def test_bibtex_of_a_scheme_and_of_a_composition(call: Call) -> None:
    for name in ("rerope", "yarn+logn"):  # the title of rerope is Chinese
        assert call("info", name, "--bibtex").out == cite(name) + "\n"


def test_parts_of_a_composition_are_shown(call: Call) -> None:
    """As the report of a patch tells its reader to."""
    shown = call("info", "yarn+logn").out
    assert "arXiv:2309.00071" in shown
    assert "name         logn" in shown
    assert [record["name"] for record in call("info", "yarn+logn", "--json").data] == ["yarn", "logn"]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "clip"])
def test_a_type_that_reads_images_is_surveyed(model_type: str) -> None:
    """`list --models --model` takes every model type of transformers, also those without a language-model head."""
    (found,) = families.one(model_type)
    assert (found.model_type, found.verdict) == (model_type, "exact")
    assert found.schemes > 40
