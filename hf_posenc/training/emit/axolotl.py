"""Axolotl: the file of ``axolotl train``, read by its pydantic model `AxolotlInputConfig`."""

from __future__ import annotations

from typing import Any

from hf_posenc.training.emit.run import DATA, OUTPUT, Framework, Run


def settings(run: Run) -> dict[str, Any]:
    """Return the configuration of ``axolotl train``."""
    training = run.training
    return {
        "base_model": run.model,
        "overrides_of_model_config": dict(run.config) or None,
        "datasets": [{"path": DATA, "ds_type": "json", "type": "completion", "field": "text"}],
        "sequence_len": training.length,
        "sample_packing": training.packing == "separate",
        "chunked_cross_entropy": training.chunked_loss is not False,
        **adapter(run),
        "output_dir": OUTPUT,
        "num_epochs": training.epochs,
        "max_steps": training.steps,
        "micro_batch_size": training.batch,
        "gradient_accumulation_steps": training.accumulate,
        "optimizer": "adamw_torch",
        "learning_rate": training.learning_rate,
        "lr_scheduler": training.schedule,
        "warmup_ratio": training.warmup,
        "weight_decay": training.weight_decay,
        "bf16": training.bf16 or run.dtype == "bfloat16",
        "gradient_checkpointing": training.gradient_checkpointing,
        "attn_implementation": "sdpa",
        "seed": training.seed,
        "save_steps": training.save_every,
        "logging_steps": 1,
    }


def adapter(run: Run) -> dict[str, Any]:
    """Return the settings of LoRA, or of QLoRA; none for full fine-tuning."""
    if not run.modules:
        return {}
    if run.four_bit:
        return {"adapter": "qlora", "load_in_4bit": True, **run.lora}
    return {"adapter": "lora", **run.lora}


AXOLOTL = Framework(
    title="Axolotl",
    file="axolotl.yaml",
    settings=settings,
    takes_config=True,
    command="axolotl train",
    script="from axolotl.cli.train import do_cli\n\ndo_cli(FILE)",
    without=("report_to",),
)
