"""The notebooks run, cell by cell, and carry no outputs.

The build of the site executes them in a kernel (`tests/docs/test_site.py`). Here their cells run in one process, which
needs nothing but the extras for tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

RUN = """
import json, sys, traceback
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        try:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        except Exception:
            sys.exit(traceback.format_exc())
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    environment = {**os.environ, "MPLBACKEND": "agg"}
    words = [sys.executable, "-c", RUN, str(path)]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr
    assert not list(tmp_path.iterdir()), "a notebook leaves files in the folder it is opened from"
