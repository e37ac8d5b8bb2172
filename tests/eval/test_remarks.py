"""Remarks of a comparison: one sentence for schemes that share it, and a word on numbers that must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hf_posenc.eval import compare
from hf_posenc.eval.report.remarks import remarks
from hf_posenc.eval.results.comparison import Comparison

from .conftest import TRAINED

pytest.importorskip("matplotlib")

SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "tasks": ["posenc_ppl"]}


@pytest.fixture
def run(llama, tokenizer, tmp_path) -> Callable:
    def compared(schemes: str, lengths: list[int], **given: Any) -> Comparison:
        return compare(llama, schemes, tokenizer=tokenizer, out=tmp_path, lengths=lengths, **SMALL, **given)

    return compared


def test_schemes_with_a_factor_of_1_are_named(run, tmp_path) -> None:
    found = run("unpatched,yarn,yarn+logn,yarn:factor=2,dca", [TRAINED // 2, TRAINED])
    losses = {row.scheme: row.value for row in found.rows if (row.metric, row.length) == ("nll", TRAINED)}
    assert losses["yarn"] == losses["yarn+logn"] == pytest.approx(losses["unpatched"], rel=1e-5)
    assert losses["dca"] != pytest.approx(losses["unpatched"], rel=1e-5)
    expected = f"yarn, yarn+logn: no effect at {TRAINED // 2}, {TRAINED} tokens; numbers are those of the model without"
    assert [one for one in remarks(found) if one.startswith("yarn")] == [f"{expected} a scheme."]
    assert sum("their factor is 1" in one for one in remarks(found)) == 1
    for name in ("results.md", "page.html"):
        assert expected in (tmp_path / name).read_text(encoding="utf-8")
    schemes = {scheme["label"]: scheme["without_effect"] for scheme in found.to_dict()["about"]["schemes"]}
    assert schemes["yarn"] == [TRAINED // 2, TRAINED]
    assert schemes["unpatched"] == schemes["yarn:factor=2"] == []


def test_a_rotation_needs_training_on_a_model_that_never_rotated(gpt2, llama, tokenizer, tmp_path) -> None:
    weights = "training, and these weights were not trained with"
    for model, expected in ((gpt2, f"yarn+logn, alibi need {weights} them."), (llama, f"alibi needs {weights} it.")):
        out = tmp_path / type(model).__name__
        found = compare(model, "yarn+logn,logn,alibi", out=out, tokenizer=tokenizer, lengths=[TRAINED], **SMALL)
        assert [one for one in remarks(found) if weights in one] == [expected]
