"""Models by name in Python: bundled models and adapters, as the command line takes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hf_posenc import get_peft_model, load_starter, patch_model
from hf_posenc.core import plugins
from hf_posenc.errors import UnknownScheme
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.schemes import registry

pytest.importorskip("matplotlib", reason="comparisons draw plots, with the extra `plot`")
FEW: dict[str, Any] = {"tasks": ["posenc_ppl"], "lengths": [128], "samples": 2, "scored": 16}


def loss(evaluation: Any) -> float:
    return next(row.value for row in evaluation.rows if row.metric == "nll")


@pytest.mark.slow
def test_a_scheme_of_a_file_is_known_to_a_model_type_of_lm_eval(tmp_path: Path, monkeypatch) -> None:
    """As ``--model_args`` writes it."""
    (tmp_path / "scheme_in_a_file.py").write_text(
        "from hf_posenc.extend import register_scheme\nfrom hf_posenc.schemes.bias.alibi import ALiBi\n"
        "@register_scheme('alibi_of_a_file')\nclass OfAFile(ALiBi): pass\n"
    )
    for owner, name in ((registry, "_SCHEMES"), (registry, "_CLASSES"), (plugins, "_IMPORTED")):
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = "pretrained=starter:llama,scheme=alibi_of_a_file"
    with pytest.raises(UnknownScheme, match="alibi_of_a_file"):
        PosEncLM.create_from_arg_string(words)
    own = PosEncLM.create_from_arg_string(f"{words},import_file={tmp_path / 'scheme_in_a_file.py'}")
    assert loss(evaluate(own, **FEW)) == loss(evaluate("starter:llama", scheme="alibi", **FEW))


@pytest.mark.slow
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
