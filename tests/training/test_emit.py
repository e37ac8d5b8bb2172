"""Runs for TRL, Axolotl and LLaMA-Factory: what they load computes the scheme, and their parsers accept the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import hf_posenc
from hf_posenc.errors import LengthContradiction, TrainingImpossible, WrongKind

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hf_posenc.starters.loading import starter_path
from hf_posenc.training import Training
from hf_posenc.training.emit import FRAMEWORKS, emit_run

TEXTS = ["One document of a few words.", "Another one, which says \u201cless\u201d.\n"]
LENGTH = 512


def emitted(
    folder: Path, framework: str, scheme: str | None, name: str | None = None, **settings
) -> tuple[dict, object]:
    """The content of the file, and the patched model."""
    model, tokenizer = hf_posenc.load_starter("llama")
    hf_posenc.patch_model(model, scheme, factor=2)
    training = Training(length=LENGTH, **({"steps": 10} | settings))
    emit_run(framework, model, tokenizer, TEXTS, training, folder, name=name)
    return yaml.safe_load((folder / FRAMEWORKS[framework].file).read_text(encoding="utf-8")), model


def logits(model) -> torch.Tensor:
    ids = torch.arange(3, LENGTH)[None] % 300
    with torch.no_grad():
        return model.eval()(ids, use_cache=False).logits


@pytest.mark.parametrize(("framework", "key"), [("trl", "model_init_kwargs"), ("axolotl", "overrides_of_model_config")])
def test_entries_of_the_configuration_are_the_scheme(framework, key, tmp_path) -> None:
    content, patched = emitted(tmp_path, framework, "yarn", name=str(starter_path("llama")))
    plain = AutoModelForCausalLM.from_pretrained(str(starter_path("llama")), dtype=torch.float32, **content[key])
    assert type(plain).__module__.startswith("transformers.")
    assert torch.allclose(logits(plain), logits(patched), atol=1e-3)
    unscaled = AutoModelForCausalLM.from_pretrained(str(starter_path("llama")), dtype=torch.float32)
    assert not torch.allclose(logits(unscaled), logits(patched), atol=1e-1)  # the entries matter
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_checkpoint_of_the_scheme_is_restored_by_the_script(framework, tmp_path) -> None:
    content, patched = emitted(tmp_path, framework, "rerope")
    script = (tmp_path / "run.py").read_text(encoding="utf-8")
    loaded = (
        "import sys, torch\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('model', dtype=torch.float32).eval()\n"
        f"ids = torch.arange(3, {LENGTH})[None] % 300\n"
        "with torch.no_grad():\n    torch.save(model(ids, use_cache=False).logits, 'logits.pt')\n"
    )
    start, _, _ = script.partition("enable_auto()\n\n")
    (tmp_path / "stub.py").write_text(f"{start}enable_auto()\n{loaded}", encoding="utf-8")
    subprocess.run([sys.executable, "stub.py"], cwd=tmp_path, check=True, timeout=120)
    computed = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert torch.allclose(computed, logits(patched), atol=1e-3)
    assert "model" in (content.get("model_name_or_path"), content.get("base_model"))


def test_a_folder_is_named_from_anywhere(tmp_path, monkeypatch) -> None:
    """The command runs in the folder of the run, where a relative name leads nowhere."""
    monkeypatch.chdir(starter_path("llama").parent)
    content, _ = emitted(tmp_path, "trl", "yarn", name="llama")
    assert Path(content["model_name_or_path"]).is_absolute()
    assert (Path(content["model_name_or_path"]) / "config.json").is_file()


def test_llama_factory_gets_the_scheme_in_a_plain_checkpoint(tmp_path) -> None:
    content, patched = emitted(tmp_path, "llama-factory", "yarn", name=str(starter_path("llama")))
    plain = AutoModelForCausalLM.from_pretrained(str(tmp_path / content["model_name_or_path"]), dtype=torch.float32)
    assert torch.allclose(logits(plain), logits(patched), atol=1e-3)
    assert json.loads((tmp_path / "dataset_info.json").read_text())["documents"]["file_name"] == "train.jsonl"


def test_cards_share_rows_that_are_ready(tmp_path) -> None:
    """Rows of token ids, as many as the steps read; accelerate reads the file beside them."""
    from accelerate.commands.config.config_args import load_config_from_file

    model, tokenizer = hf_posenc.load_starter("llama")
    hf_posenc.patch_model(model, "yarn", factor=2)
    training, name = Training(length=64, steps=2, accumulate=3), str(starter_path("llama"))
    run = emit_run("trl", model, tokenizer, ["x = 1\n" * 400], training, tmp_path, name=name, cards=4)
    assert run.command == "trl sft --config trl.yaml --accelerate_config accelerate.yaml"
    rows = [json.loads(line)["input_ids"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [len(row) for row in rows] == [64] * 6
    assert [token for row in rows for token in row] == tokenizer("x = 1\n" * 400)["input_ids"][: 6 * 64]
    content = yaml.safe_load((tmp_path / "trl.yaml").read_text())
    assert (content["packing"], content["bf16"]) == (False, True)
    read = load_config_from_file(str(tmp_path / "accelerate.yaml"))
    assert (read.num_processes, read.parallelism_config["parallelism_config_cp_size"]) == (4, 4)
    assert read.fsdp_config["fsdp_version"] == 2


@pytest.mark.parametrize(
    ("framework", "scheme", "settings", "more"),
    [("trl", "rerope", {}, {}), ("axolotl", "yarn", {}, {}), ("trl", "yarn", {"packing": "separate"}, {}),
     ("trl", "yarn", {"length": 60}, {}), ("trl", "yarn", {}, {"four_bit": True})],
)  # fmt: skip
def test_what_cards_cannot_share_is_refused(framework, scheme, settings, more, tmp_path) -> None:
    model, tokenizer = hf_posenc.load_starter("llama")
    hf_posenc.patch_model(model, scheme, factor=2)
    training = Training(**({"length": 64, "steps": 1} | settings))
    with pytest.raises(TrainingImpossible, match="cards=4"):
        emit_run(framework, model, tokenizer, TEXTS, training, tmp_path / "run", cards=4, **more)
    assert not (tmp_path / "run").exists()


def test_the_documents_are_records_with_a_text(tmp_path) -> None:
    emitted(tmp_path, "trl", "yarn", name=str(starter_path("llama")))
    lines = (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == TEXTS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_layers_exist_in_the_model(framework, tmp_path) -> None:
    content, model = emitted(tmp_path, framework, "yarn", rank=4)
    targets = content.get("lora_target_modules") or content["lora_target"].split(",")
    whole = content.get("lora_modules_to_save") or content["additional_target"].split(",")
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=targets, modules_to_save=whole))
    trained = {
        name.split(".lora_A.")[0].rpartition(".")[2]
        for name, weight in wrapped.named_parameters()
        if ".lora_A." in name
    }
    assert trained == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_axolotl_reads_it(tmp_path) -> None:
    schemas = pytest.importorskip("axolotl.utils.schemas.config", reason="axolotl is not a dependency")
    content, _ = emitted(tmp_path, "axolotl", "yarn", name=str(starter_path("llama")))
    assert not set(content) - set(schemas.AxolotlInputConfig.model_fields)
    assert schemas.AxolotlInputConfig(**content).overrides_of_model_config["rope_parameters"]["rope_type"] == "yarn"


def test_trl_reads_it(tmp_path, monkeypatch) -> None:
    sft = pytest.importorskip("trl.scripts.sft", reason="TRL is not a dependency")
    emitted(tmp_path, "trl", "yarn", name=str(starter_path("llama")))
    monkeypatch.chdir(tmp_path)
    read = sft.make_parser().parse_args_and_config(["--config", "trl.yaml"], fail_with_unknown_args=True)
    assert read[1].model_init_kwargs["rope_parameters"]["rope_type"] == "yarn"
    assert read[3].datasets[0].data_files == "train.jsonl"
    default = sft.make_parser().parse_args_and_config(["--use_cpu", "true"])[1]
    assert read[1].loss_type == default.loss_type  # in chunks, from TRL 1.7 on


def test_llama_factory_reads_it(tmp_path, monkeypatch) -> None:
    hparams = pytest.importorskip("llamafactory.hparams", reason="LLaMA-Factory is not a dependency")
    content, _ = emitted(tmp_path, "llama-factory", "yarn")
    monkeypatch.chdir(tmp_path)
    model, data, training, tuning, _ = hparams.get_train_args(content)
    assert (model.model_name_or_path, data.dataset, training.max_steps) == ("model", ["documents"], 10)
    assert "q_proj" in tuning.lora_target


@pytest.mark.parametrize(
    ("framework", "settings"),
    [
        ("axolotl", {"alpha": 0.5}),
        ("trl", {"eval_windows": 4}),
        ("axolotl", {"report_to": ("wandb",)}),
        ("llama-factory", {"chunked_loss": True}),
    ],
)
def test_what_a_framework_has_no_word_for_is_refused(framework, settings, tmp_path) -> None:
    with pytest.raises(TrainingImpossible):
        emitted(tmp_path / "run", framework, "yarn", **settings)
    assert not (tmp_path / "run").exists()


def test_wrong_names_and_lengths_are_refused(tmp_path) -> None:
    model, tokenizer = hf_posenc.load_starter("llama")
    with pytest.raises(WrongKind, match="trl"):
        emit_run("tlr", model, tokenizer, TEXTS, Training(length=64, steps=1), tmp_path / "run")
    with pytest.raises(LengthContradiction):
        emit_run("trl", model, tokenizer, TEXTS, Training(length=LENGTH, steps=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
