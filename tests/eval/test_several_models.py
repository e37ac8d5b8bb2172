"""Several models in one comparison, and runs merged afterwards: the same numbers, side by side, on the same targets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_posenc.errors import BadComparison
from hf_posenc.eval import MeasuredModel, compare

from .conftest import TRAINED, byte_level

pytest.importorskip("matplotlib")
SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "lengths": [TRAINED, 2 * TRAINED], "tasks": ["posenc_ppl"]}


@pytest.fixture
def tuned(llama) -> Any:
    """The same model after a change of its weights."""
    other = copy.deepcopy(llama)
    with torch.no_grad():
        other.lm_head.weight.mul_(0.5)
    return other


@pytest.fixture
def run(llama, tuned, tokenizer, tmp_path) -> Callable:
    models = {"base": MeasuredModel(llama, "models/base", tokenizer), "tuned": MeasuredModel(tuned, "tuned", tokenizer)}

    def compared(names: str, out: str, schemes: str = "unpatched,pi", **given: Any) -> Any:
        chosen = [models[name] for name in names.split(",")]
        return compare(chosen, schemes, out=tmp_path / out, **(SMALL | given))

    return compared


def losses(comparison: Any) -> dict[tuple[str, str, int], float]:
    return {(r.model, r.scheme, r.length): r.value for r in comparison.rows if r.metric == "nll"}


def test_models_stand_side_by_side(run, tmp_path) -> None:
    both, base, tuned = run("base,tuned", "both"), run("base", "base"), run("tuned", "tuned")
    assert both.labels == ["base · unpatched", "base · pi", "tuned · unpatched", "tuned · pi"]
    expected = {
        (model, f"{short} · {scheme}", length): value
        for short, one in (("base", base), ("tuned", tuned))
        for (model, scheme, length), value in losses(one).items()
    }
    assert losses(both) == expected
    assert len(set(expected.values())) > 4  # control: the models differ
    page = (tmp_path / "both" / "page.html").read_text(encoding="utf-8")
    assert "tuned · pi" in page
    assert [model["name"] for model in both.about["models"]] == ["models/base", "tuned"]


def test_models_are_compared_document_by_document(run) -> None:
    both = run("base,tuned", "both", against="base · pi")
    assert {one.scheme for one in both.differences} == {"base · unpatched", "tuned · unpatched", "tuned · pi"}
    assert not run("base,tuned", "both").differences  # control
    for wrong in ("base · yarn", "pi"):
        with pytest.raises(BadComparison, match="base · unpatched"):
            run("base,tuned", "both", against=wrong)


def test_another_tokenizer_is_refused(llama, tuned, tokenizer, tmp_path) -> None:
    models = [MeasuredModel(llama, "a", tokenizer), MeasuredModel(tuned, "b", byte_level(framed=True))]
    with pytest.raises(BadComparison, match="tokenizer of 'b' differs"):
        compare(models, "unpatched", out=tmp_path, **SMALL)
