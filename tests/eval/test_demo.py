"""`hf-posenc demo` on a tiny model: every file, every line, and factors of one kind in a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from hf_posenc import is_patched, patch_model, starters, unpatch_model
from hf_posenc.eval import demo, evaluate
from hf_posenc.eval.demo_plan import FINE_TUNED, DemoPlan
from hf_posenc.eval.report.report import protocol
from hf_posenc.eval.report.terminal_table import results_table
from hf_posenc.training import Tuned
from hf_posenc.training.trained_parameters import RunStart

from .conftest import TRAINED

pytest.importorskip("matplotlib")

SMALL = DemoPlan(("unpatched", "pi", "dynamic_ntk"), (1, 2), samples=2, scored=16, keys=1, depths=(0.5,), steps=3)
LENGTHS = [TRAINED, 2 * TRAINED]


@pytest.fixture
def run(llama, tokenizer, tmp_path, monkeypatch) -> Callable[..., demo.DemoResults]:
    """The demo on a tiny model, without a real fine-tuning."""

    def finetune(model, tokenizer, texts, training, *, progress):
        assert (training.length, training.steps) == (2 * TRAINED, 3)
        progress(1.0, 0.0)
        return Tuned(model, [], RunStart({}, 0, 1e-3, "as given"))

    monkeypatch.setattr("hf_posenc.training.finetune", finetune)
    monkeypatch.setattr(starters, "load_starter", lambda name: (llama, tokenizer), raising=False)
    monkeypatch.setattr(demo, "QUICK", SMALL)
    return lambda **given: demo.run_demo(tmp_path / "out", quick=True, **given)


def losses(results: demo.DemoResults, scheme: str) -> dict[int | None, float]:
    wanted = (scheme, "posenc_ppl", "nll")
    return {row.length: row.value for row in results.rows if (row.scheme, row.task, row.metric) == wanted}


def test_demo_writes_its_folder(run, tmp_path: Path) -> None:
    fractions: list[float] = []
    results = run(progress=lambda done, doing: fractions.append(done))
    names = ["loss.png", "overview.png", "passkey.png", "report.md", "results.json"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    saved = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(results.to_dict()))
    schemes = (*SMALL.labels, FINE_TUNED)
    assert {(r.scheme, r.length) for r in results.rows} == {(scheme, n) for scheme in schemes for n in LENGTHS}
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(results_table(results.rows, TRAINED, protocol(results.about)))
    assert all(word in captured.get() for word in (*schemes, "factor 2 at every length"))


def by_hand(llama, tokenizer, scheme: str, target: int, lengths: list[int], **options: float) -> dict[int, float]:
    patch_model(llama, scheme, target_length=target, **options)
    given = {name: getattr(SMALL, name) for name in ("samples", "scored")}
    rows = evaluate(llama, tokenizer, tasks=["posenc_ppl"], lengths=lengths, longest=LENGTHS[-1], **given).rows
    unpatch_model(llama)
    return {r.length: r.value for r in rows if r.metric == "nll"}


def test_a_table_has_one_factor(run, llama, tokenizer) -> None:
    results = run()
    unpatch_model(llama)  # of the line that would have been fine-tuned
    assert losses(results, "pi") == pytest.approx(by_hand(llama, tokenizer, "pi", 2 * TRAINED, LENGTHS))
    chosen = {"multiplier": 2.0, "granularity": TRAINED // 4}
    expected = by_hand(llama, tokenizer, "dynamic_ntk", 2 * TRAINED, LENGTHS, **chosen)
    assert losses(results, "dynamic_ntk") == pytest.approx(expected)
    assert losses(results, "pi")[TRAINED] != pytest.approx(losses(results, "unpatched")[TRAINED])


def test_refitted_per_length(run, llama, tokenizer) -> None:
    results = run(factor_per_length=True)
    assert not is_patched(llama)
    assert FINE_TUNED not in {row.scheme for row in results.rows}  # which has one factor
    assert losses(results, "pi")[TRAINED] == pytest.approx(losses(results, "unpatched")[TRAINED], rel=1e-6)
    expected = by_hand(llama, tokenizer, "pi", 2 * TRAINED, LENGTHS[1:])
    assert losses(results, "pi")[2 * TRAINED] == pytest.approx(expected[2 * TRAINED])
    assert results.about["options"]["dynamic_ntk"][str(2 * TRAINED)]["multiplier"] == 2.0
    assert results.about["options"]["dynamic_ntk"][str(TRAINED)]["multiplier"] == 1.0
    assert "refitted per length" in protocol(results.about)
