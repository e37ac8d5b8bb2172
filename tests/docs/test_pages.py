"""The documentation is current: code runs, commands exist, pages agree with the records."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hf_posenc.cli.app import app
from hf_posenc.cli.global_options import separated
from hf_posenc.insight.plots.kinds import list_plots
from hf_posenc.schemes import registry

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]
sys.path.append(str(DOCS.parent / "examples" / "lessons"))  # for `properties`

import make_pictures  # noqa: E402
import scheme_pages  # noqa: E402

BUILT = ("commands.md", "seams.md", "families.md")
PAGES = sorted(  # without translations, whose code is that of their originals: test_chinese.py
    file
    for file in DOCS.rglob("*.md")
    if not {"schemes", "zh"} & {*file.relative_to(DOCS).parts} and file.name not in BUILT
)
RECORDS = scheme_pages.built_in()
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def blocks(language: str) -> list[Any]:
    """Blocks of code of one language, by page."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        pytest.param(block, id=f"{file.relative_to(DOCS)}-{number}")
        for file in PAGES
        if file.parent.name != "how-to"  # whose blocks follow each other: tests/docs/test_how_to.py
        for number, block in enumerate(pattern.findall(file.read_text(encoding="utf-8")))
    ]


def commands() -> list[str]:
    """Every command line of this package on a page, of a picture, and inside a text."""
    texts = [file.read_text(encoding="utf-8") for file in PAGES]
    shown = [line for text in texts for line in re.findall(r"^\$ (hf-posenc .*)$", text, re.MULTILINE)]
    inside = [line for text in texts for line in re.findall(r"`(hf-posenc [a-z]+ [^`…]*)`", text)]
    named = [line for line in inside if not re.search(r"\b(NAME|COMMAND)\b", line)]
    drawn = [*make_pictures.PICTURES, *(make_pictures.picture(f"scheme-{record.name}") for record in RECORDS)]
    return sorted({*shown, *named, *(made.line for made in drawn)})


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block registers ends with it."""
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))


@pytest.mark.parametrize("block", blocks("python"))
def test_code_runs(block: str) -> None:
    names: dict[str, Any] = {"__name__": "hf_posenc"}
    exec(compile(block, "docs", "exec"), names)
    assert len(names) > 2, "a block that makes nothing shows nothing"  # there is __builtins__ beside


@pytest.mark.parametrize("block", blocks("pycon"))
def test_doctests_pass(block: str) -> None:
    output: list[str] = []
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(block, {}, "docs", "docs", 0), out=output.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(output)


@pytest.mark.parametrize("line", commands())
def test_documented_commands_parse(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option exists and takes such a value; nothing is run."""
    words, files = separated(shlex.split(line)[1:])
    assert all((DOCS.parent / file).is_file() for file in files)
    name, *words = words
    if "--config" in words:  # which is read at once; an earlier command of the page has written it
        monkeypatch.chdir(tmp_path)
        written = tmp_path / words[words.index("--config") + 1]
        written.parent.mkdir(parents=True)
        written.write_text("model: starter:llama\n")
    given = COMMANDS[name].make_context(name, words).params
    for picture in given.get("picture") or () if not files else ():  # such a file may have a plot
        assert picture in {known.name for known in list_plots()}


def test_a_wrong_option_is_noticed() -> None:
    """Control of the test above."""
    with pytest.raises(Exception, match="no-such-option"):
        COMMANDS["probe"].make_context("probe", ["--model", "starter:llama", "--no-such-option"])
