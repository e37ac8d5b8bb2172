"""Write a tiny checkpoint for every scheme that has none yet, with its logits: ``python tests/golden/write.py``.

What is there is never written again: checkpoints of today must load for ever. Delete a folder to have it made anew,
which is a change of the format that its users will meet, too.
"""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from hf_posenc import list_schemes, patch_model
from hf_posenc.checks.case import perturb_parameters, position_limit
from hf_posenc.errors import PosEncError

HERE = Path(__file__).parent / "v1"
ANSWER = "answer.safetensors"
WIDTH, HEADS, VOCABULARY, TRAINED = 16, 2, 16, 8
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
OWN = {
    "llama": {"intermediate_size": WIDTH, "num_key_value_heads": 1, **ENDS},
    "gpt2": {"n_inner": WIDTH, **ENDS},
    "bert": {"intermediate_size": WIDTH, "pad_token_id": 0},
}
SMALL = {"dyn_bias": {"width": 16}, "deberta": {"span": 32, "buckets": 16}, "rel_bias": {"max_distance": 16}}
BESIDES = ("README.md", "generation_config.json")


def base_model(kind: str, layers: int) -> PreTrainedModel:
    """Random numbers that bfloat16 represents exactly, so a file of half the size loses nothing."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=HEADS,
        max_position_embeddings=TRAINED, **OWN[kind],
    )  # fmt: skip
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(20.0)
    return rounded(model)


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def patched(scheme: str) -> PreTrainedModel:
    """Patch the first model that takes a scheme, at four times the trained length, or once if it cannot extend."""
    for factor, layers, kind in product((4, 1), (1, 4), ("llama", "gpt2", "bert")):
        torch.manual_seed(0)
        try:
            model = patch_model(base_model(kind, layers), scheme, factor=factor, **SMALL.get(scheme, {}))
        except PosEncError:
            continue
        perturb_parameters(model)
        return rounded(model)
    raise LookupError(f"No model takes scheme {scheme!r}.")


def write(scheme: str) -> None:
    model, folder = patched(scheme), HERE / scheme
    ids = torch.randint(
        3, VOCABULARY, (1, min(position_limit(model) or 20, 20)), generator=torch.Generator().manual_seed(1)
    )
    torch.manual_seed(0)  # randpos draws positions in every reading
    with torch.no_grad():
        logits = model(ids).logits
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in BESIDES:
        (folder / name).unlink(missing_ok=True)
    save_file({"ids": ids, "logits": logits.contiguous()}, folder / ANSWER)


if __name__ == "__main__":
    for record in list_schemes():
        if not (HERE / record.name).exists():
            try:
                write(record.name)
            except BaseException:
                shutil.rmtree(HERE / record.name, ignore_errors=True)
                raise
