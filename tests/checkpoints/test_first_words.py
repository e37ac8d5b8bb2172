"""What a program without this package prints on one of its folders begins with what to call."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hf_posenc import get_peft_model, patch_model
from hf_posenc.starters.loading import starter_path

peft = pytest.importorskip("peft", reason="adapters need the extra `train`")

WITHOUT = """
import sys; sys.modules["hf_posenc"] = None
import transformers
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftConfig, PeftModel
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaForCausalLM, pipeline

def words(load, *args):
    try:
        load(*args)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    raise AssertionError((load, args, "was not refused"))

base = AutoModelForCausalLM.from_pretrained("base")
of_adapters = [
    words(PeftModel.from_pretrained, base, "adapter"), words(base.load_adapter, "adapter"),
    words(AutoPeftModelForCausalLM.from_pretrained, "adapter"), words(PeftConfig.from_pretrained, "adapter"),
    words(LoraConfig.from_pretrained, "adapter"), words(AutoModelForCausalLM.from_pretrained, "adapter"),
    words(pipeline, "text-generation", "adapter"),
]
for said in of_adapters:
    assert said.startswith("KeyError: 'Load this adapter with hf_posenc.from_pretrained, or on a base with "), said
of_models = [
    words(AutoConfig.from_pretrained, "patched"), words(AutoModel.from_pretrained, "patched"),
    words(AutoModelForCausalLM.from_pretrained, "patched"), words(pipeline, "text-generation", "patched"),
]
for said in of_models:  # transformers speaks of the type of model first, and of an update last
    first = said.partition("\\n")[0]
    assert "has model type `llama with positions of the package hf_posenc: load it with hf_posenc.from_" in first, said
    assert first.index("updating transformers does not help") < first.index("out of date"), said
last = words(LlamaForCausalLM.from_pretrained, "patched").splitlines()[-1]
assert "'Load this checkpoint with hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first" in last, last
"""


@pytest.mark.slow
def test_the_function_to_call_comes_before_any_other_advice(make_model, run_in_new_process, tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path / "base")
    model = patch_model(make_model("llama"), "yarn", factor=4)
    model.save_pretrained(tmp_path / "patched")
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model.name_or_path = "base"
    get_peft_model(model, adapter).save_pretrained(tmp_path / "adapter")
    for name in ("base", "patched"):
        for file in starter_path("llama").glob("tokenizer*"):
            shutil.copy(file, tmp_path / name)
    run_in_new_process(WITHOUT)
