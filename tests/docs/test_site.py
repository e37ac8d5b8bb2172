"""The site builds without warnings: links, names and pictures resolve."""

from __future__ import annotations

import json
import re
import shutil
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


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html", "-d", str(target / "trees")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(target / "site")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("built")
    built = build(ROOT / "docs", folder)
    assert built.returncode == 0, built.stderr
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


def small_site(tmp_path: Path) -> Path:
    """An empty folder with the configuration of the site, but for its own extensions, most of which need its pages."""
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", source)
    conf = (source / "conf.py").read_text(encoding="utf-8")
    for extension in (*(ROOT / "docs" / "_ext").glob("*.py"), *(ROOT / "docs").glob("make_*.py")):
        conf = conf.replace(f'    "{extension.stem}",\n', "")
    (source / "conf.py").write_text(conf.replace('html_static_path = ["_static"]', ""), encoding="utf-8")
    return source


def test_a_failing_notebook_is_noticed(tmp_path: Path) -> None:
    """Control: a cell that raises ends the build."""
    source = small_site(tmp_path)
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None}
    notebook = json.loads((ROOT / "docs" / "notebooks" / "1_see_encodings.ipynb").read_text(encoding="utf-8"))
    notebook["cells"] = [notebook["cells"][0], cell | {"source": ["raise RuntimeError('as planned')"]}]
    (source / "index.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "CellExecutionError" in built.stderr
    assert "index.ipynb" in built.stderr
