"""Files for contributors are current: versions agree, commands exist, the example scheme works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import hf_posenc
from hf_posenc.checks import check_scheme
from hf_posenc.cli.app import app
from hf_posenc.schemes import registry

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def parsed(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


def test_citation_is_of_this_version() -> None:
    citation = parsed("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == hf_posenc.__version__
    assert {"message", "title", "authors"} <= citation.keys()


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


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^ *\$ hf-posenc (.*)$", CONTRIBUTING, re.MULTILINE))))
def test_commands_exist(line: str) -> None:
    name, *words = shlex.split(line)
    COMMANDS[name].make_context(name, words)


def test_scripts_exist() -> None:
    scripts = set(re.findall(r"\bpython ((?:docs|tests)/[\w/]+\.py)", CONTRIBUTING))
    modules = set(re.findall(r"python -m (hf_posenc[\w.]+)", CONTRIBUTING))
    assert len(scripts) >= 3
    assert all((ROOT / script).is_file() for script in scripts), scripts
    assert all((ROOT / (module.replace(".", "/") + ".py")).is_file() for module in modules), modules
