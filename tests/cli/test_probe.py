"""``hf-posenc probe``: output, files, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = ("--samples", "2", "--set", "rows=16", "--length", "128")


@pytest.mark.slow
def test_tables_and_plots(call: Callable, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plot")
    answer = call("probe", "--model", "starter:gpt2", *SMALL, "--out", str(tmp_path / "out"))
    assert answer.code == 0
    assert "heads use position" in answer.out
    assert "used length" in answer.out
    assert "not above the lowest by more than 2 standard errors" in " ".join(answer.out.split())
    for name in ("distance", "heads", "sinks", "loss"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "probe.json").read_text())["trained_length"] == 256
