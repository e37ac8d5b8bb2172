"""TRL: the file of ``trl sft``, read by its `TrlParser` into `SFTConfig`, `ModelConfig` and others."""

from __future__ import annotations

from typing import Any

from hf_posenc.training.emit.run import DATA, Framework, Run

PACKING = {"joined": "wrapped", "separate": "bfd"}


def settings(run: Run) -> dict[str, Any]:
    """The arguments of ``trl sft``."""
    training = run.training
    return {
        "model_name_or_path": run.model,
        **({"model_init_kwargs": dict(run.config)} if run.config else {}),
        "dtype": run.dtype,
        **({"load_in_4bit": True} if run.four_bit else {}),
        "datasets": [{"path": "json", "data_files": DATA}],
        "dataset_text_field": "text",
        "max_length": training.length,
        "packing": True,
        "packing_strategy": PACKING[training.packing],
        "loss_type": "nll" if training.chunked_loss is False else "chunked_nll",
        **(adapter(run) if run.modules else {}),
        **run.arguments,
        "gradient_checkpointing": training.gradient_checkpointing,
    }


def adapter(run: Run) -> dict[str, Any]:
    """LoRA, or DoRA; without tied embeddings, which the file cannot keep tied."""
    return {
        "use_peft": True,
        "lora_r": run.training.rank,
        "lora_alpha": run.alpha,
        "lora_dropout": 0.0,
        "lora_target_modules": list(run.modules),
        **({"lora_modules_to_save": list(run.whole)} if run.whole else {}),
        "use_dora": run.training.method == "dora",
    }


TRL = Framework(
    title="TRL",
    file="trl.yaml",
    settings=settings,
    takes_config=True,
    command="trl sft --config",
    script="from trl.scripts.sft import main, make_parser\n\n"
    'main(*make_parser().parse_args_and_config(["--config", FILE], fail_with_unknown_args=False))',
    methods=("lora", "dora", "full"),
)
