"""A new process loads checkpoints and gets the same numbers: one scheme for every hook."""

from __future__ import annotations

import json

import pytest
import torch
from packaging.version import Version
from safetensors.torch import save_file
from transformers.integrations.peft import MIN_PEFT_VERSION

from hf_posenc import patch_model
from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import PeftAdapterMismatch

peft = pytest.importorskip("peft", reason="half of the models are PEFT adapters; they need the extra `train`")

ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}  # processes may sum in another order

READER = """
import json
from pathlib import Path
import torch, transformers
import hf_posenc
from hf_posenc.checks.forward import forward
from safetensors.torch import load_file

def compare(model, folder, limit):
    stored = load_file(folder / "asked.safetensors")
    deviation = (forward(model, stored["tokens"]) - stored["read"]).abs().max().item()
    assert deviation <= limit, (str(folder), deviation)

jobs = json.loads(Path("jobs.json").read_text())
for job in jobs:
    compare(hf_posenc.from_pretrained(job["folder"], **job["load"]), Path(job["folder"]), job["limit"])
hf_posenc.enable_auto()
for job in jobs:
    for auto in job["auto"]:
        model = getattr(transformers, auto).from_pretrained(job["folder"], **job["load"])
        assert hf_posenc.is_patched(model), (job, auto)
        if auto.endswith("LM"):
            compare(model.eval(), Path(job["folder"]), job["limit"])
"""


@pytest.mark.slow
def test_numbers_are_equal(cases, run_in_new_process, tmp_path) -> None:
    """Types, shards and device maps are dealt out among the schemes; Auto classes load them after `enable_auto`."""
    jobs = []
    heads = {
        "llama": ["AutoModelForCausalLM", "AutoModel", "AutoModelForSequenceClassification"],
        "gpt2": ["AutoModelForCausalLM", "AutoModel", "AutoModelForTokenClassification"],
        "bert": ["AutoModelForMaskedLM", "AutoModel", "AutoModelForQuestionAnswering"],
    }
    for number, case in enumerate(cases):
        dtype = list(ROUNDING)[number % 3]
        model = case.apply(case.fresh()).to(dtype)
        folder = f"{case.model_name}-{case.scheme_name}"
        model.save_pretrained(tmp_path / folder, **({"max_shard_size": "40KB"} if number % 2 else {}))
        tokens = random_tokens(model, case.clip_length(case.trained_length + 9, model)).contiguous()
        save_file({"tokens": tokens, "read": forward(model, tokens)}, tmp_path / folder / "asked.safetensors")
        load = [{}, {"device_map": "cpu"}, {"device_map": "auto"}][number % 3]
        auto = heads[case.model_name][: 3 if number % 4 == 0 else 1]
        jobs.append({"folder": folder, "load": load, "limit": ROUNDING[dtype], "auto": auto})
        assert bool(list((tmp_path / folder).glob("model-*"))) == bool(number % 2)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    run_in_new_process(READER)


ADAPTERS = """
import json
from pathlib import Path
import hf_posenc
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.checks.forward import forward
from safetensors.torch import load_file

for job in json.loads(Path("jobs.json").read_text()):
    folder = Path(job["folder"])
    stored = load_file(folder / "asked.safetensors")
    for base in ("plain", "patched"):
        model = tiny_model(job["kind"])
        if base == "patched":
            hf_posenc.patch_model(model, job["scheme"], **job["options"])
        model = hf_posenc.load_peft_adapter(model, folder, patch="apply" if base == "plain" else "refuse")
        deviation = (forward(model, stored["tokens"]) - stored["read"]).abs().max().item()
        assert deviation <= 1e-4, (str(folder), base, deviation)
"""
PROJECTIONS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "bert": ["query", "value"]}


def lora(kind: str) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=PROJECTIONS[kind], fan_in_fan_out=kind == "gpt2")


def patch_then_peft(case: Case):
    return peft.get_peft_model(patch_model(case.fresh(), case.scheme, **case.options), lora(case.model_name))


def peft_then_patch(case: Case):
    return patch_model(peft.get_peft_model(case.fresh(), lora(case.model_name)), case.scheme, **case.options)


def patch_then_add(case: Case):
    model = patch_model(case.fresh(), case.scheme, **case.options)
    model.add_adapter(lora(case.model_name))
    return model


def add_then_patch(case: Case):
    model = case.fresh()
    model.add_adapter(lora(case.model_name))
    return patch_model(model, case.scheme, **case.options)


ORDERS = [patch_then_peft, peft_then_patch]
if Version(peft.__version__) >= Version(MIN_PEFT_VERSION):  # transformers refuses to add adapters of an older PEFT
    ORDERS += [patch_then_add, add_then_patch]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # PEFT reads what transformers has renamed
def test_adapters_saved_by_others_are_equal(cases, run_in_new_process, tmp_path) -> None:
    """PEFT and transformers save them, in every order of patch and adapter; no function of this package is called."""
    jobs = []
    generator = torch.Generator().manual_seed(0)
    for number, case in enumerate(cases):
        for order in (ORDERS[number % len(ORDERS)], ORDERS[(number + 1) % len(ORDERS)]):
            model = order(case).eval()
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    if "lora_" in name or "posenc." in name:
                        weight += 0.1 * torch.randn(weight.shape, generator=generator)
            folder = f"{case}-{order.__name__}"
            model.save_pretrained(tmp_path / folder)
            tokens = random_tokens(model, case.clip_length(case.trained_length + 9, model)).contiguous()
            save_file({"tokens": tokens, "read": forward(model, tokens)}, tmp_path / folder / "asked.safetensors")
            jobs.append({"folder": folder, "kind": case.model_name, "scheme": case.scheme, "options": case.options})
            with pytest.raises(PeftAdapterMismatch, match="trained under scheme"):
                peft.PeftModel.from_pretrained(tiny_model(case.model_name), tmp_path / folder)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    run_in_new_process(ADAPTERS)
