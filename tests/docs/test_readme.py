"""Code and links of the README work, the example scheme passes its checks, and the citation is of this version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import hf_posenc
from hf_posenc.checks import check_scheme
from hf_posenc.schemes import registry

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.partition("\n")[0] for block in BLOCKS])
def test_code_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_example_scheme_passes_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))  # what the block registers ends with it
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    page = (ROOT / "docs" / "add-scheme.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    exec(compile(block, "add-scheme.md", "exec"), {"__name__": "hf_posenc"})
    model, _ = hf_posenc.load_starter("llama")
    found = check_scheme(model, "log_distance", factor=4, checks=("formula", "cache", "unpatch"))
    assert found
    assert not [str(deviation) for deviation in found if deviation.failed]


def test_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == hf_posenc.__version__
