"""The notebooks run, cell by cell; they carry no outputs; each stays within its time.

The build of the site executes them in a kernel (`tests/docs/test_site.py`). Here their cells run in one process, which
needs nothing but the extras for tests.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 60
"""Of processor time: the wall clock of a test run in parallel says nothing about a notebook alone on two cores."""

RUN = """
import json, sys, time, traceback
path, seconds = sys.argv[1:]
names = {"__name__": "__main__"}
for cell in json.load(open(path, encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        try:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        except Exception:
            sys.exit(traceback.format_exc())
open(seconds, "w").write(str(time.process_time()))
"""


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def run(path: Path, folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Execute a notebook in a new process and an empty folder; its processor time, 0 where it failed."""
    seconds = folder / "seconds"
    work = folder / "work"
    work.mkdir()
    found = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(seconds)], cwd=work, capture_output=True, text=True, check=False,
        env={**os.environ, "MPLBACKEND": "agg"},
    )  # fmt: skip
    return found, float(seconds.read_text()) if seconds.exists() else 0.0


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_within_its_time(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found, seconds = run(path, tmp_path)
    assert found.returncode == 0, found.stderr
    assert seconds <= SECONDS, f"{seconds:.0f} s of processor time"
    assert not list((tmp_path / "work").iterdir()), "a notebook leaves files in the folder it is opened from"


def test_a_failing_cell_is_noticed(tmp_path: Path) -> None:
    """Control of the test above."""
    sources = {"a": "x = 1", "b": "assert not x"}
    cells = [{"cell_type": "code", "id": name, "source": [text]} for name, text in sources.items()]
    (tmp_path / "broken.ipynb").write_text(json.dumps({"cells": cells}))
    started = time.monotonic()
    found, _ = run(tmp_path / "broken.ipynb", tmp_path)
    assert found.returncode != 0
    assert 'File "b", line 1' in found.stderr
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_opens_anywhere(path: Path) -> None:
    """Format 4.5 without outputs, plain Python only, names and files that exist."""
    notebook = read(path)
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "clear all outputs before committing"
            ast.parse("".join(cell["source"]))  # no magic, no shell
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert links
    assert all((FOLDER / link).is_file() for link in links), links
    assert f"<{path.name}>" in (FOLDER / "index.md").read_text(encoding="utf-8")
