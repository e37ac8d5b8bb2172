"""A new process loads checkpoints and gets the same numbers: one scheme for every hook."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from hf_posenc.checks.forward import forward, random_tokens

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
