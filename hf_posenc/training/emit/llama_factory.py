"""LLaMA-Factory: the file of ``llamafactory-cli train``, read by its `get_train_args`.

The file can only name four RoPE types, and LLaMA-Factory computes their factors itself. The scheme is therefore always
in the checkpoint.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.training.emit.run import DATA, OUTPUT, Framework, Run

NAME = "documents"


def settings(run: Run) -> dict[str, Any]:
    """Return the arguments of ``llamafactory-cli train``."""
    training = run.training
    return {
        "stage": "pt",
        "do_train": True,
        "model_name_or_path": run.model,
        "quantization_bit": 4 if run.four_bit else None,
        "dataset_dir": ".",
        "dataset": NAME,
        "template": "default",
        "cutoff_len": training.length,
        "packing": True,
        "neat_packing": training.packing == "separate",
        **adapter(run),
        "output_dir": OUTPUT,
        **training.arguments,
        "disable_gradient_checkpointing": not training.gradient_checkpointing,
        "flash_attn": "sdpa",
    }


def adapter(run: Run) -> dict[str, Any]:
    """Return the settings of LoRA, or of full fine-tuning."""
    if not run.modules:
        return {"finetuning_type": "full"}
    return {
        "finetuning_type": "lora",
        "lora_rank": run.training.rank,
        "lora_alpha": run.alpha,
        "lora_dropout": 0.0,
        "lora_target": ",".join(run.modules),
        "additional_target": ",".join(run.whole) or None,
    }


LLAMA_FACTORY = Framework(
    title="LLaMA-Factory",
    file="llama_factory.yaml",
    settings=settings,
    takes_config=False,
    command="llamafactory-cli train",
    script="from llamafactory.train.tuner import run_exp\nfrom yaml import safe_load\n\n"
    "run_exp(safe_load(open(FILE, encoding='utf-8')))",
    without=("chunked_loss",),
    more={"dataset_info.json": {NAME: {"file_name": DATA, "columns": {"prompt": "text"}}}},
)
