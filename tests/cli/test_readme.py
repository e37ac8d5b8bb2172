"""The README is true: its commands, its table, its code, its links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_posenc import errors
from hf_posenc.cli.readme import scheme_table, with_table
from hf_posenc.schemes import registry

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_two_commands_set_everything_up() -> None:
    assert [command.strip() for command in COMMANDS] == [
        "pip install -c constraints.txt -e '.[all]' && hf-posenc demo",
        "pip install -c constraints.txt -e '.[all,test]' && pytest",
    ]


def test_ci_runs_the_second_command() -> None:
    assert COMMANDS[1] in (ROOT / ".ci" / "run").read_text()


def test_table_is_the_registry() -> None:
    records = [record for record in registry.list_schemes() if record.target.startswith("hf_posenc.")]
    assert with_table(README, scheme_table(records)) == README, "Run: python -m hf_posenc.cli.readme"


@pytest.mark.parametrize("block", BLOCKS, ids=[block.partition("\n")[0] for block in BLOCKS])
def test_code_runs(block: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))  # what a block registers ends with it
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    exec(compile(block, "README.md", "exec"), {"__name__": "hf_posenc"})
    if "describe" in block:
        assert "factor 8" in capsys.readouterr().out


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link).exists() for link in links), [link for link in links if not (ROOT / link).exists()]


def test_errors_it_names_exist() -> None:
    table = README.partition("## What is refused")[2].partition("##")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", table))
    assert len(named) > 10
    assert all(hasattr(errors, name) for name in named)
