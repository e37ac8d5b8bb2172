"""The site builds without warnings: links, names and pictures resolve."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site is built with the extra docs: pip install 'hf-posenc[docs]'")
pytest.importorskip("myst_parser", reason="likewise")
pytest.importorskip("furo", reason="likewise")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-b",
        "html",
        "-d",
        str(target / "trees"),
    ]
    return subprocess.run([*words, str(source), str(target / "site")], capture_output=True, text=True, check=False)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    built = build(ROOT / "docs", tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {str(file.relative_to(tmp_path / "site")) for file in (tmp_path / "site").rglob("*.html")}
    assert {
        "index.html",
        "start.html",
        "guide/rotation.html",
        "schemes/yarn.html",
        "commands.html",
        "api.html",
    } <= pages
    text = (tmp_path / "site" / "limits.html").read_text(encoding="utf-8")
    assert 'href="api.html#hf_posenc.errors.NoEffect"' in text
    assert "cdn." not in text  # nothing is fetched by a reader, either


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """Control: a site of one page with two of them."""
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", source)
    conf = (source / "conf.py").read_text(encoding="utf-8")
    for name in ("scheme_pages", "command_page", "picture", "interactive_page"):
        conf = conf.replace(f'    "{name}",\n', "")
    (source / "conf.py").write_text(conf.replace('html_static_path = ["_static"]', ""), encoding="utf-8")
    (source / "index.md").write_text("# One\n\n[](nowhere.md) [](#hf_posenc.errors.Nothing)\n", encoding="utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
    assert "hf_posenc.errors.Nothing" in built.stderr
