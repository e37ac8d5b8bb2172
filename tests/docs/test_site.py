"""The site builds without warnings: links, names and pictures resolve, and every cell of every notebook runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site is built with the extra docs: pip install 'hf-posenc[docs]'")
pytest.importorskip("myst_nb", reason="likewise")
pytest.importorskip("furo", reason="likewise")
pytest.importorskip("sphinx-mathjax-offline", reason="likewise")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("built")
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html", "-d", str(folder / "trees")]
    options += ["-D", f"nb_execution_cache_path={folder / 'cells'}"]  # every cell is executed, whatever was cached
    words = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "site")]
    before = set((ROOT / "docs" / "notebooks").iterdir())
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    left = set((ROOT / "docs" / "notebooks").iterdir()) - before
    assert not left, "a notebook leaves files in the folder it is opened from"
    return folder / "site"


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    pages = {str(file.relative_to(site)) for file in site.rglob("*.html")}
    assert {"index.html", "guide/rotation.html", "schemes/yarn.html", "commands.html", "api.html"} <= pages
    notebook = (site / "notebooks" / "3_fine_tune.html").read_text(encoding="utf-8")
    assert "loss at 512 minus loss at 256 tokens" in notebook.split('class="cell_output')[-2]  # it was executed
    pictures = (site / "notebooks" / "1_see_encodings.html").read_text(encoding="utf-8")
    assert pictures.count("<img") >= 7
    assert "&lt;Figure" not in pictures  # a figure that is not shown prints as this
    assert "5_write_scheme.ipynb" in (site / "notebooks" / "index.html").read_text(encoding="utf-8")
    text = (site / "limits.html").read_text(encoding="utf-8")
    assert 'href="api.html#hf_posenc.errors.InvalidInput"' in text


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    for file in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]*)"', file.read_text(encoding="utf-8"))
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)], file.name
