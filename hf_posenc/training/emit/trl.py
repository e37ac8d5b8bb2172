"""TRL: the file of ``trl sft``, read by its `TrlParser` into `SFTConfig`, `ModelConfig` and others.

From TRL 1.7 on, the loss is computed in chunks by default.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.training.emit.run import DATA, OUTPUT, Framework, Run

PACKING = {"joined": "wrapped", "separate": "bfd"}


def settings(run: Run) -> dict[str, Any]:
    """Return the arguments of ``trl sft``."""
    training = run.training
    return {
        "model_name_or_path": run.model,
        "model_init_kwargs": dict(run.config) or None,
        "dtype": run.dtype,
        "load_in_4bit": True if run.four_bit else None,
        "datasets": [{"path": "json", "data_files": DATA}],
        "max_length": training.length,
        **texts(run),
        "loss_type": "nll" if training.chunked_loss is False else None,
        "use_peft": True if run.modules else None,
        **run.lora,
        "output_dir": OUTPUT,
        **training.arguments,
        "bf16": training.bf16 or run.cards > 1,
        "gradient_checkpointing": training.gradient_checkpointing,
    }


def texts(run: Run) -> dict[str, Any]:
    """Return the settings with which TRL packs documents; if cards share rows, the rows are packed here."""
    if run.cards > 1:
        return {"packing": False}
    return {"dataset_text_field": "text", "packing": True, "packing_strategy": PACKING[run.training.packing]}


TRL = Framework(
    title="TRL",
    file="trl.yaml",
    settings=settings,
    takes_config=True,
    command="trl sft --config",
    script="from trl.scripts.sft import main, make_parser\n\n"
    'main(*make_parser().parse_args_and_config(["--config", FILE], fail_with_unknown_args=False))',
    shares_rows=True,
)
