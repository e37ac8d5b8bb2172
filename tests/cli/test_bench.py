"""``hf-posenc bench``: output, files, refusals, and what an interrupted run keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.insight.bench import run as measuring

TINY = ("--shape", "1,32,2,2", "--lengths", "32,64", "--rounds", "2", "--device", "cpu")


@pytest.mark.slow
def test_json_is_complete(call: Callable) -> None:
    answer = call("bench", *TINY, "--schemes", "yarn,self_extend:group=16,window=8", "--cases", "decode", "--json")
    assert answer.code == 0, answer.err
    about, cells = answer.data["about"], answer.data["cells"]
    assert (about["threads"], about["dtype"], about["model"]) == (1, "float32", "1,32,2,2")
    assert about["command"].startswith("hf-posenc bench --schemes")
    assert "torch" in about["versions"]
    assert [(c["scheme"], c["case"], c["length"]) for c in cells] == [
        (scheme, "decode", n) for n in (32, 64) for scheme in ("yarn", "self_extend:group=16,window=8")
    ]
    for cell in cells:
        assert set(cell["models"]) == {"unpatched", "patched", "naive"}
        assert len(cell["models"]["patched"]["wall_seconds"]) == 2
        assert cell["over"]["unpatched"]["time"]["median"] > 0
        assert cell["models"]["patched"]["memory_bytes"] > 0


@pytest.mark.slow
def test_interrupted_it_keeps_what_is_finished(call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = measuring.cell_of, []

    def second_is_too_long(*given: Any) -> Any:
        seen.append(given)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(measuring, "cell_of", second_is_too_long)
    answer = call("bench", *TINY, "-s", "yarn", "--out", str(tmp_path))
    assert answer.code == 130
    assert "1 finished cell" in answer.err
    assert "yarn" in answer.out
    assert [cell["length"] for cell in json.loads((tmp_path / "bench.json").read_text())["cells"]] == [32]
