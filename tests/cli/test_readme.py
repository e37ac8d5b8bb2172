"""Commands, code, links and table of the README are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_posenc import errors
from hf_posenc.cli.readme import PAGE, scheme_table, with_table
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
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_table(text, scheme_table(records)) == text, "Run: python -m hf_posenc.cli.readme"


@pytest.mark.parametrize("block", BLOCKS, ids=[block.partition("\n")[0] for block in BLOCKS])
def test_code_runs(block: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))  # what a block registers ends with it
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    exec(compile(block, "README.md", "exec"), {"__name__": "hf_posenc"})
    if "describe" in block:
        assert "factor 8" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/schemes.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")]
    assert links
    folder = (ROOT / page).parent
    assert all((folder / link).exists() for link in links), [link for link in links if not (folder / link).exists()]


@pytest.mark.parametrize(
    "term",
    [
        "KV cache", "context length", "context window", "long context", "extrapolation", "positional encoding",
        "position embedding", "sequence length", "attention mask", "StreamingLLM", "needle in a haystack",
        "passkey retrieval", "perplexity", "context extension", "length extrapolation",
    ],
)  # fmt: skip
def test_terms_that_people_search_for(term: str) -> None:
    assert term in README.replace("\n", " ")


def test_it_fits_two_screens() -> None:
    assert len(README.splitlines()) <= 120


def test_documented_errors_exist() -> None:
    table = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").partition("## Refused")[2].partition("##")[0]
    named = set(re.findall(r"#hf_posenc\.errors\.(\w+)", table))
    assert len(named) > 10
    assert all(hasattr(errors, name) for name in named)
