"""Checkpoints with a scheme: without this package no loader takes them; with it, and Auto classes enabled, all do."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from hf_posenc import describe, disable_auto, enable_auto, from_pretrained, is_patched, patch_model, unpatch_model
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.patching.config_guard import GUARD_KEY
from hf_posenc.starters.loading import starter_path

from ..small_models import auto_classes, edit_weights

WITHOUT = """
import sys; sys.modules["hf_posenc"] = None
import json
from pathlib import Path
import transformers
from transformers import AutoTokenizer, LlamaForCausalLM, pipeline

def refused(load, *args, **kwargs):
    try:
        load(*args, **kwargs)
    except Exception as error:
        assert "hf_posenc" in str(error), error
    else:
        raise AssertionError((load, args, "was not refused"))

for folder in map(str, Path(".").glob("patched-*")):
    kind = folder.split("-")[1]
    llm = "AutoModelForMaskedLM" if kind == "bert" else "AutoModelForCausalLM"
    own = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM"}[kind]
    config = {"llama": "LlamaConfig", "gpt2": "GPT2Config", "bert": "BertConfig"}[kind]
    for name in (llm, own, "AutoModel", "AutoConfig", config, "AutoModelForSequenceClassification"):
        refused(getattr(transformers, name).from_pretrained, folder)
    refused(pipeline, "fill-mask" if kind == "bert" else "text-generation", model=folder)
    refused(getattr(transformers, own).from_pretrained, folder, num_hidden_layers=2)
    want, got = AutoTokenizer.from_pretrained(f"plain-{kind}"), AutoTokenizer.from_pretrained(folder)
    text = "The dog chased another dog."
    assert type(want) is type(got) and want(text).input_ids == got(text).input_ids
    assert "pip install hf_posenc" in Path(folder, "config.json").read_text()
    content = json.loads(Path(folder, "config.json").read_text())
    kept = content.pop("position_scheme_guard")
    Path(folder, "config.json").write_text(json.dumps({**content, **dict(kept)}))
    if kind == "llama":  # control: nothing else refuses it
        LlamaForCausalLM.from_pretrained(folder)
print("all refused")
"""


@pytest.mark.slow
def test_every_loader_without_the_package_is_refused(make_model, run_in_new_process, tmp_path) -> None:
    """Auto classes, concrete classes, configurations, pipelines; tokenizers load as ever."""
    for kind, scheme in (("llama", "yarn"), ("llama", "t5"), ("gpt2", "alibi"), ("bert", "alibi")):
        model = make_model(kind)
        folders = tmp_path / f"plain-{kind}", tmp_path / f"patched-{kind}-{scheme}"
        model.save_pretrained(folders[0])
        patch_model(model, scheme, factor=4).save_pretrained(folders[1])
        for file in starter_path(kind).glob("tokenizer*"):
            for folder in folders:
                shutil.copy(file, folder)
    assert run_in_new_process(WITHOUT) == "all refused"


WITHOUT_PEFT = """
import sys; sys.modules["hf_posenc"] = None
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftConfig, PeftMixedModel, PeftModel
from transformers import AutoModelForCausalLM

def base():
    return AutoModelForCausalLM.from_pretrained("base")

ways = {
    "PeftModel": lambda: PeftModel.from_pretrained(base(), "adapter"),
    "mixed": lambda: PeftMixedModel.from_pretrained(base(), "adapter"),
    "Auto class of PEFT": lambda: AutoPeftModelForCausalLM.from_pretrained("adapter"),
    "configuration": lambda: PeftConfig.from_pretrained("adapter"),
    "Auto class": lambda: AutoModelForCausalLM.from_pretrained("adapter"),
    "load_adapter": lambda: base().load_adapter("adapter"),
}
for name, load in ways.items():
    try:
        load()
    except Exception as error:
        assert "pip install hf_posenc" in str(error) and "hf_posenc.from_pretrained" in str(error), (name, error)
    else:
        raise AssertionError(f"{name} was not refused")
PeftModel.from_pretrained(base(), "adapter", config=LoraConfig(target_modules=["q_proj"]))  # what cannot be refused
print("all refused")
"""


@pytest.mark.slow
def test_every_loader_of_an_adapter_without_the_package_is_refused(make_model, run_in_new_process, tmp_path) -> None:
    make_model("llama").save_pretrained(tmp_path / "base")
    model = from_pretrained(tmp_path / "base", scheme="yarn", factor=4)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    assert run_in_new_process(WITHOUT_PEFT) == "all refused"


def test_it_is_written_wherever_a_patched_model_is_saved_and_nowhere_else(make_model, tmp_path) -> None:
    def written(name: str) -> bool:
        return GUARD_KEY in json.loads((tmp_path / name / "config.json").read_text())

    model = patch_model(make_model("gpt2"), "alibi", factor=4)
    model.save_pretrained(tmp_path / "saved")
    copy.deepcopy(model).save_pretrained(tmp_path / "copy")
    model.config.save_pretrained(tmp_path / "config")
    loaded = from_pretrained(tmp_path / "saved")
    loaded.save_pretrained(tmp_path / "again")
    arguments = TrainingArguments(str(tmp_path / "run"), use_cpu=True, report_to="none")
    Trainer(loaded, arguments).save_model(str(tmp_path / "trainer"))
    for name in ("saved", "copy", "config", "again", "trainer"):
        assert written(name), name
    unpatch_model(loaded).save_pretrained(tmp_path / "unpatched")
    assert not written("unpatched")
    assert not (tmp_path / "unpatched" / "README.md").exists()
    assert not is_patched(GPT2LMHeadModel.from_pretrained(tmp_path / "unpatched"))


def test_after_enable_auto_configurations_load_too(make_model, tmp_path) -> None:
    patch_model(make_model("bert"), "alibi", factor=4).save_pretrained(tmp_path)
    with auto_classes():
        config = AutoConfig.from_pretrained(tmp_path)
        edit_weights(tmp_path, lambda held: held.pop("bert.encoder.layer.1.output.dense.bias"))
        with pytest.raises(CheckpointMismatch, match=r"layer\.1\.output"):  # which transformers would draw at random
            AutoModel.from_pretrained(tmp_path)
    assert (config.model_type, config.num_hidden_layers) == ("bert", 2)
    with pytest.raises(ValueError, match="hf_posenc"):
        AutoConfig.from_pretrained(tmp_path)


def test_the_readme_says_how_to_load_and_keeps_what_else_it_says(make_model, tmp_path) -> None:
    model = patch_model(make_model("llama"), "yarn+logn", factor=4)
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "yarn+logn" in card
    assert "hf_posenc.from_pretrained" in card
    (tmp_path / "README.md").write_text("# Mine\n\nnaïve\n" + card.partition("---\n\n")[2] + "\nthe end\n", "utf-8")
    unpatch_model(model)
    patch_model(model, "pi", factor=4).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Mine\n\nnaïve\n")
    assert card.endswith("the end\n")
    assert "yarn" not in card
    assert card.count("## How to load this") == 1


HOOKED = {"from_pretrained": PreTrainedModel, "_from_config": PreTrainedModel, "get_config_dict": PreTrainedConfig}
TRANSFORMERS_OWN = {name: owner.__dict__[name] for name, owner in HOOKED.items()}


@pytest.fixture
def auto() -> Iterator[None]:
    with auto_classes():
        yield


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.usefixtures("auto")
def test_auto_classes_restore_the_scheme(kind, make_model, logits_of, perturb, tmp_path) -> None:
    model = patch_model(make_model(kind), "t5", factor=4)
    perturb(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert torch.equal(logits_of(AutoModel.from_pretrained(tmp_path)), logits_of(model.base_model))
    assert describe(loaded).proof.verdict == "moved"


@pytest.mark.usefixtures("auto")
def test_classes_and_configurations_restore_it_too(make_model, logits_of, tmp_path) -> None:
    model = patch_model(make_model("gpt2"), "alibi", factor=4)
    model.save_pretrained(tmp_path)
    loaded, info = GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert not info["unexpected_keys"]
    in_memory = GPT2LMHeadModel.from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(logits_of(in_memory), logits_of(model))
    fresh = AutoModelForCausalLM.from_config(model.config)
    assert describe(fresh).scheme == "alibi"
    assert fresh.transformer.wpe.num_embeddings == 16  # the model's table, not one of the target length


@pytest.mark.usefixtures("auto")
def test_plain_checkpoints_load_as_before(make_model, logits_of, tmp_path) -> None:
    model = make_model("llama")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not is_patched(loaded)
    assert torch.equal(logits_of(loaded), logits_of(model))
    with pytest.raises(OSError, match="nowhere"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "nowhere", local_files_only=True)


def test_enabling_twice_and_disabling_leaves_nothing_behind(make_model, tmp_path) -> None:
    enable_auto()
    enable_auto()
    disable_auto()
    assert {name: owner.__dict__[name] for name, owner in HOOKED.items()} == TRANSFORMERS_OWN
    patch_model(make_model("llama"), "yarn", factor=4).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="hf_posenc"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
