"""The notebooks run, cell by cell, and leave no files.

The build of the site executes them in a kernel (`tests/docs/test_site.py`). Here their cells run in one process, which
needs nothing but the extras for tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

RUN = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""


def run(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MPLBACKEND": "agg"}
    words = [sys.executable, "-c", RUN, str(path)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = run(path, tmp_path)
    assert found.returncode == 0, found.stderr
    assert not list(tmp_path.iterdir()), "a notebook leaves files in the folder it is opened from"


def test_a_failing_cell_is_noticed(tmp_path: Path) -> None:
    """Control of the test above."""
    cells = [{"cell_type": "code", "id": "broken", "source": ["raise ValueError"]}]
    (tmp_path / "broken.ipynb").write_text(json.dumps({"cells": cells}))
    found = run(tmp_path / "broken.ipynb", tmp_path)
    assert found.returncode, found.stdout
