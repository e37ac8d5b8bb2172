"""`hf-posenc demo` on a tiny model: every file, every line, and progress that only moves forward."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from hf_posenc import starters
from hf_posenc.eval import demo
from hf_posenc.eval.report.terminal_table import results_table
from hf_posenc.training import Tuned
from hf_posenc.training.trained_parameters import RunStart

from .conftest import TRAINED


def test_demo_writes_its_folder(llama, tokenizer, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    calls = []

    def finetune(model, tokenizer, texts, training, *, progress):
        calls.append((training.length, training.steps, len(texts)))
        progress(1.0, 0.0)
        return Tuned(model, [], RunStart({}, 0, 1e-3, "as given"))

    monkeypatch.setattr("hf_posenc.training.finetune", finetune)
    monkeypatch.setattr(starters, "load_starter", lambda name: (llama, tokenizer), raising=False)
    small = demo.Plan(("unpatched", "pi", "yarn"), (1, 2), samples=2, scored=16, keys=1, depths=(0.5,), steps=3)
    monkeypatch.setattr(demo, "QUICK", small)
    fractions: list[float] = []
    results = demo.run_demo(tmp_path / "out", quick=True, progress=lambda done, doing: fractions.append(done))

    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "loss.png",
        "passkey.png",
        "report.md",
        "results.json",
    ]
    saved = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(results.to_dict()))
    lines = {(r.scheme, r.length) for r in results.rows}
    schemes = ("unpatched", "pi", "yarn", demo.FINE_TUNED)
    assert lines == {(scheme, length) for scheme in schemes for length in (TRAINED, 2 * TRAINED)}
    assert [call[:2] for call in calls] == [(2 * TRAINED, 3)]
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(results_table(results.rows, TRAINED))
    assert all(scheme in captured.get() for scheme in schemes)
