"""The files of TRL, Axolotl and LLaMA-Factory: a new setting of `Training` has a name in each of them.

The file of ``trl sft`` is read by its `TrlParser` into `SFTConfig`, `ModelConfig` and others, that of ``axolotl train``
by its pydantic model `AxolotlInputConfig`, that of ``llamafactory-cli train`` by its `get_train_args`.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.training.emit.run import DATA, OUTPUT, Framework, Run

PACKING = {"joined": "wrapped", "separate": "bfd"}
NAME = "documents"


def trl_settings(run: Run) -> dict[str, Any]:
    """Return the arguments of ``trl sft``, which from TRL 1.7 on computes the loss in chunks by default."""
    training, packs = run.training, run.cards == 1  # if cards share rows, the rows are packed here
    return {
        "model_name_or_path": run.model,
        "model_init_kwargs": dict(run.config) or None,
        "dtype": run.dtype,
        "load_in_4bit": True if run.four_bit else None,
        "datasets": [{"path": "json", "data_files": DATA}],
        "max_length": training.length,
        "dataset_text_field": "text" if packs else None,
        "packing": packs,
        "packing_strategy": PACKING[training.packing] if packs else None,
        "loss_type": "nll" if training.chunked_loss is False else None,
        "use_peft": True if run.modules else None,
        **run.lora,
        "output_dir": OUTPUT,
        **training.arguments,
        "bf16": training.bf16 or run.cards > 1,
        "gradient_checkpointing": training.gradient_checkpointing,
    }


TRL = Framework(
    title="TRL",
    file="trl.yaml",
    settings=trl_settings,
    takes_config=True,
    command="trl sft --config",
    script="from trl.scripts.sft import main, make_parser\n\n"
    'main(*make_parser().parse_args_and_config(["--config", FILE], fail_with_unknown_args=False))',
    shares_rows=True,
)


def axolotl_settings(run: Run) -> dict[str, Any]:
    """Return the configuration of ``axolotl train``."""
    training = run.training
    quantised = run.four_bit and bool(run.modules)
    method = "qlora" if quantised else "lora"
    return {
        "base_model": run.model,
        "overrides_of_model_config": dict(run.config) or None,
        "datasets": [{"path": DATA, "ds_type": "json", "type": "completion", "field": "text"}],
        "sequence_len": training.length,
        "sample_packing": training.packing == "separate",
        "chunked_cross_entropy": training.chunked_loss is not False,
        "adapter": method if run.modules else None,
        "load_in_4bit": True if quantised else None,
        **run.lora,
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


AXOLOTL = Framework(
    title="Axolotl",
    file="axolotl.yaml",
    settings=axolotl_settings,
    takes_config=True,
    command="axolotl train",
    script="from axolotl.cli.train import do_cli\n\ndo_cli(FILE)",
    without=("report_to",),
)


def llama_factory_settings(run: Run) -> dict[str, Any]:
    """Return the arguments of ``llamafactory-cli train``.

    They can only name four RoPE types, whose factors LLaMA-Factory computes itself. The scheme is therefore always in
    the checkpoint.
    """
    training = run.training
    lora: dict[str, Any] = {}
    if run.modules:
        lora = {
            "lora_rank": training.rank,
            "lora_alpha": run.alpha,
            "lora_dropout": 0.0,
            "lora_target": ",".join(run.modules),
            "additional_target": ",".join(run.whole) or None,
        }
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
        "finetuning_type": "lora" if run.modules else "full",
        **lora,
        "output_dir": OUTPUT,
        **training.arguments,
        "disable_gradient_checkpointing": not training.gradient_checkpointing,
        "flash_attn": "sdpa",
    }


LLAMA_FACTORY = Framework(
    title="LLaMA-Factory",
    file="llama_factory.yaml",
    settings=llama_factory_settings,
    takes_config=False,
    command="llamafactory-cli train",
    script="from llamafactory.train.tuner import run_exp\nfrom yaml import safe_load\n\n"
    "run_exp(safe_load(open(FILE, encoding='utf-8')))",
    without=("chunked_loss",),
    more={"dataset_info.json": {NAME: {"file_name": DATA, "columns": {"prompt": "text"}}}},
)

FRAMEWORKS = {"trl": TRL, "axolotl": AXOLOTL, "llama-factory": LLAMA_FACTORY}
