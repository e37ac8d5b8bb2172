"""Models by name in Python: bundled models and adapters, as the command line takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_posenc import get_peft_model, load_starter, patch_model
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.lm.models import PosEncLM

pytest.importorskip("matplotlib", reason="comparisons draw plots, with the extra `plot`")
FEW: dict[str, Any] = {"tasks": ["posenc_ppl"], "lengths": [128], "samples": 2, "scored": 16}


def loss(evaluation: Any) -> float:
    return next(row.value for row in evaluation.rows if row.metric == "nll")


def test_bundled_models_are_named(tmp_path: Path) -> None:
    model, tokenizer = load_starter("llama")
    want = loss(evaluate(model, tokenizer, **FEW))
    assert loss(evaluate("starter:llama", **FEW)) == pytest.approx(want, rel=1e-6)
    found = compare("starter:llama", "unpatched,alibi", out=tmp_path, **FEW)
    assert found.about["model"] == "starter:llama"
    assert loss(found) == pytest.approx(want, rel=1e-6)
    assert str(PosEncLM("starter:llama").model.dtype) == "torch.float32"


def test_an_adapter_is_named_and_its_base_found_or_given(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")
    model, tokenizer = load_starter("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = get_peft_model(patch_model(model, "yarn", factor=4), config)
    tuned.save_pretrained(tmp_path / "tuned")  # without a tokenizer: that of the base is taken
    want = loss(evaluate(tuned, tokenizer, **FEW))
    assert loss(evaluate(tmp_path / "tuned", **FEW)) == pytest.approx(want, rel=1e-5)
    assert loss(evaluate("starter:llama", peft=str(tmp_path / "tuned"), **FEW)) == pytest.approx(want, rel=1e-5)
    assert loss(evaluate("starter:llama", scheme="yarn", factor=4, **FEW)) != pytest.approx(want, rel=1e-3)
    compared = compare(tmp_path / "tuned", "unpatched,rerope", out=tmp_path / "out", **FEW)
    assert compared.about["model"] == str(tmp_path / "tuned")
    assert compared.labels == ["yarn (as saved)", "rerope"]
    assert loss(compared) == pytest.approx(want, rel=1e-5)
