"""``hf-posenc probe``: output, files, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = ("--samples", "2", "--set", "rows=16", "--length", "128")


@pytest.mark.slow
def test_json_is_complete(call: Callable) -> None:
    answer = call("probe", "--model", "starter:llama", "--scheme", "yarn", "--factor", "2", *SMALL, "--json")
    assert answer.code == 0
    found = answer.data
    assert [variant["label"] for variant in found["variants"]] == ["unpatched", "yarn"]
    variant = found["variants"][0]
    assert len(variant["heads"]) == 4 * 8
    assert len(variant["attention_mass"]) == 4
    for layer in variant["attention_mass"]:
        for head in layer:
            assert sum(head) == pytest.approx(1.0, abs=1e-5)
    assert variant["loss_by_context"]["used_length"] in (64, 128)
    assert len(found["moved"]) == 4


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
