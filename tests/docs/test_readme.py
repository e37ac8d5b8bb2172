"""Code and links of the README work, and the table of schemes is the registry."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hf_posenc.schemes import registry

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs")]
from make_schemes import PAGE, scheme_table, with_table  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_table_is_the_registry() -> None:
    records = [record for record in registry.list_schemes() if record.target.startswith("hf_posenc.")]
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text, scheme_table(records)) == text, "Run: python docs/make_schemes.py"


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
