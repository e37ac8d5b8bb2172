"""Cells of a comparison: keys contain every setting that can change a number, and costs are stored apart."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_posenc import describe, is_patched, patch_model, unpatch_model
from hf_posenc.eval import compare
from hf_posenc.eval.comparison import measure as measuring
from hf_posenc.eval.comparison.cell import Measuring
from hf_posenc.eval.comparison.measure import begin_peak, cache_per_token, costs_since, measure_cell, patched
from hf_posenc.eval.errors import TextTooShort
from hf_posenc.eval.report.tables import cost_table
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record, Store
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.schemes.entry import Entry

from .conftest import TRAINED

YARN = Entry("yarn", "yarn")
OPTIONS: dict[str, Any] = {"longest": 4 * TRAINED, "samples": 2}


@dataclass(frozen=True)
class AsGiven(Measuring):
    """Nothing is looked up in a model."""

    def fit(self, entry: Entry) -> Entry:
        return entry

    def computes(self, entry: Entry) -> dict[str, Any]:
        return {}


def of(given: dict[str, Any] = {}, model: Any = None, **others: Any) -> AsGiven:  # noqa: B006
    settings = CompareSettings.of({"lengths": [64], **OPTIONS, **given})
    chosen = {"model_args": {"dtype": "float32"}, "identity": {"model": "a", "text": "b"}, **others}
    lm: Any = SimpleNamespace(model=model, report={})
    return AsGiven(lm, settings, store=Store(Path(":memory:")), own_digests={}, **chosen)


def key(
    own: Measuring | None = None, entry: Entry = YARN, task: str = "posenc_ppl", lengths: tuple[int, ...] = (64,)
) -> str:
    return (own or of()).cell(entry, task, lengths).key


def test_a_key_covers_every_setting_that_changes_a_number() -> None:
    keys = [
        key(),
        key(of({"seed": 1})),
        key(of({"samples": 3})),
        key(of({"limit": 2})),
        key(of({"longest": 8 * TRAINED})),
        key(of(model_args={"dtype": "bfloat16"})),
        key(of(identity={"model": "c", "text": "b"})),
        key(of(identity={"model": "a", "text": "c"})),
        key(entry=Entry("pi", "pi")),
        key(entry=Entry("yarn", "yarn", {"beta_fast": 16.0})),
        key(entry=Entry("yarn", "yarn", {"factor": 2.0})),
        key(entry=Entry("unpatched", None)),
        key(task="posenc_passkey"),
        key(lengths=(128,)),
        key(lengths=(64, 128)),
    ]
    assert len(set(keys)) == len(keys)


def test_a_key_covers_nothing_else() -> None:
    assert key(entry=Entry("another label", "yarn")) == key()
    assert key(entry=Entry("linear", "linear")) == key(entry=Entry("pi", "pi"))


@pytest.mark.parametrize(("options", "target"), [({}, 4 * TRAINED), ({"factor": 3.0}, 3 * TRAINED)])
def test_a_model_is_patched_for_its_cell_alone(llama, options: dict[str, Any], target: int) -> None:
    own = of({}, llama)
    with patched(own, own.cell(Entry("yarn", "yarn", options), "posenc_ppl", (2 * TRAINED,))):
        assert describe(llama).target_length == target
    assert not is_patched(llama)
    short = of({"longest": 64}, llama)
    with patched(short, short.cell(Entry("yarn", "yarn"), "posenc_ppl", (64,))):
        assert describe(llama).target_length == TRAINED  # never less than was trained
    with pytest.raises(ZeroDivisionError), patched(own, own.cell(YARN, "t", (64,))):
        raise ZeroDivisionError
    assert not is_patched(llama)


def test_learned_schemes_start_from_the_seed(llama) -> None:
    found = []
    for seed in (0, 0, 1):
        own = of({"seed": seed}, llama)
        torch.rand(3)
        before = torch.random.get_rng_state()
        with patched(own, own.cell(Entry("t5", "t5"), "t", (64,))):
            found.append(next(p for n, p in llama.named_parameters() if "posenc" in n).detach().clone())
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


ROWS = [Row("m", "yarn", "posenc_ppl", 64, None, "nll", 2.0, None, 4)]


def outcome(monkeypatch: pytest.MonkeyPatch, evaluated: Any = None, refusal: Exception | None = None) -> Record:
    """The record of a cell whose evaluation gives, or raises, something; or whose patch does."""

    @contextmanager
    def patch(*_: Any) -> Any:
        if refusal:
            raise refusal
        yield

    def evaluate(*_: Any, **__: Any) -> Any:
        if isinstance(evaluated, Exception):
            raise evaluated
        return SimpleNamespace(rows=evaluated, documents=[1.0], remarks=["a remark"])

    monkeypatch.setattr(measuring, "patched", patch)
    monkeypatch.setattr(measuring, "evaluation_of", evaluate)
    monkeypatch.setattr(measuring, "costs_since", lambda *_, **__: None)
    own = of(model=torch.nn.Linear(1, 1))
    return measure_cell(own, own.cell(YARN, "posenc_ppl", (64,)), lambda *_: None, "")


def test_states_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    done = outcome(monkeypatch, ROWS)
    assert (done.state, done.reason, done.rows, done.length, done.scheme) == ("done", "", ROWS, 64, "yarn")
    assert (done.documents, done.remarks) == ([1.0], ["a remark"])
    bad = [replace(ROWS[0], value=float("nan"))]
    for rows, message in (([], "no number"), (ROWS + bad, "nll is nan at length 64")):
        failed = outcome(monkeypatch, rows)
        assert (failed.state, failed.rows, failed.documents) == ("failed", [], [])
        assert message in failed.reason
    assert outcome(monkeypatch, refusal=TextTooShort("No. Do.")).state == "refused"
    assert outcome(monkeypatch, TextTooShort("No. Do.")).state == "failed"
    crashed = outcome(monkeypatch, ValueError("first line\nsecond"))
    assert (crashed.state, crashed.reason) == ("failed", "ValueError: first line")
    for error in (MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("[enforce fail] can't allocate memory")):
        assert outcome(monkeypatch, error).reason.startswith("Out of memory at 64 tokens")


SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "lengths": [TRAINED, 2 * TRAINED], "tasks": ["posenc_ppl"]}


def test_the_cache_is_keys_and_values_of_every_layer(llama, bert) -> None:
    config = llama.config
    expected = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4  # float32
    assert cache_per_token(llama) == expected
    patch_model(llama, "yarn", factor=2)
    assert cache_per_token(llama) == expected
    unpatch_model(llama)
    patch_model(llama, "rerope", factor=2)  # near keys rotated by their position, and far ones by 0
    assert cache_per_token(llama) == expected * 3 / 2
    assert cache_per_token(bert) is None


def test_peak_memory_is_that_since_it_was_begun(llama) -> None:
    if not begin_peak(llama.device):
        pytest.skip("this system does not tell the peak of a part of a run")
    size = 200 << 20
    taken = torch.ones(size // 4)
    with_it = costs_since(llama, llama.device, measurable=True)
    del taken
    begin_peak(llama.device)
    after = costs_since(llama, llama.device, measurable=True)
    assert 0.8 * size < with_it.peak_memory - after.peak_memory < 1.5 * size
    assert after.memory_of == "process"


def test_costs_are_stored_and_written_apart(llama, tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = compare(llama, "unpatched,rerope", tokenizer=tokenizer, out=tmp_path, **SMALL)
    assert {record.scheme: record.costs.cache_per_token for record in found.records} == {
        "unpatched": 256.0, "rerope": 384.0,
    }  # fmt: skip
    head, table, *_ = cost_table(found)
    assert [line[0] for line in table] == ["unpatched", "rerope"]
    assert head[0] == "scheme"
    assert "seconds" not in (tmp_path / "results.json").read_text(encoding="utf-8")
    again = compare(llama, "unpatched,rerope", tokenizer=tokenizer, out=tmp_path, **SMALL)
    assert again.records == found.records
