"""The options that say what a fine-tuning run is: those of ``hf-posenc finetune`` and ``find-learning-rate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from hf_posenc.cli.arguments import (
    Base,
    Dtype,
    Factor,
    Model,
    SchemeOptions,
    TargetLength,
    TrainedLength,
    length_option,
)
from hf_posenc.cli.config_file import ConfigFile
from hf_posenc.cli.text_arguments import FIELD, SOURCES, DocumentSeparator, TextField


@dataclass(frozen=True)
class FinetuneOptions:
    """A fine-tuning run as the command line describes it; the help texts say what each option is."""

    model: Model
    scheme: Annotated[
        str | None, Option("--scheme", "-s", help="Scheme to patch in first; default: the scheme of the checkpoint.")
    ] = None
    factor: Factor = None
    target_length: TargetLength = None
    trained_length: TrainedLength = None
    option: SchemeOptions = None
    text: Annotated[
        list[str] | None, Option(help=f"Training text: {SOURCES}; default: sources of the standard library.")
    ] = None
    held_out: Annotated[
        list[str] | None,
        Option(
            help="Evaluation text, named likewise; default: the last 5 % of --text, or other sources of the standard "
            "library."
        ),
    ] = None
    text_field: TextField = FIELD
    document_separator: DocumentSeparator = None
    streaming: Annotated[
        bool, Option("--streaming", help="Read the training text while training, in its order, instead of before.")
    ] = False
    recipe: Annotated[
        str,
        Option(
            help="Named settings, which other options override: full_length, growing_length, shifted_sparse, pose or "
            "drope."
        ),
    ] = "full_length"
    length: Annotated[
        int | None,
        length_option(help="Training sequence length; default: as the recipe has."),
    ] = None
    length_stages: Annotated[
        int | None,
        Option(
            min=1,
            help="Stages in which training sequences double in length up to --length; default: 1, or as the recipe "
            "has.",
        ),
    ] = None
    attention_groups: Annotated[
        int | None,
        Option(
            min=1,
            help="Groups of a training sequence within which heads attend, half of them shifted (S²-Attn); default: 1, "
            "or as the recipe has.",
        ),
    ] = None
    steps: Annotated[int | None, Option(min=1, help="Optimiser steps; default: 150, or as the recipe has.")] = None
    epochs: Annotated[float | None, Option(help="Times that the training text is read, instead of --steps.")] = None
    method: Annotated[
        str | None,
        Option(help="lora, dora, lora_plus, ia3, prompt, prefix or full; default: lora, or as the recipe has."),
    ] = None
    batch: Annotated[
        int | None,
        Option(
            "--batch-size",
            min=1,
            help="Sequences per process and forward pass; default: 1, or as the recipe has.",
        ),
    ] = None
    accumulate: Annotated[int, Option(min=1, help="Batches per optimiser step.")] = 1
    schedule: Annotated[
        str, Option(help="Of the learning rate: cosine, linear, constant_with_warmup or inverse_sqrt.")
    ] = "cosine"
    warmup: Annotated[float, Option(help="Share of the steps before the peak learning rate.")] = 0.1
    weight_decay: Annotated[float, Option(help="Of AdamW.")] = 0.0
    rank: Annotated[int, Option(min=1, help="Rank of LoRA's matrices; for prompt and prefix, virtual tokens.")] = 16
    alpha: Annotated[float | None, Option(help="Of LoRA, scaled by alpha / rank; default: twice the rank.")] = None
    target_modules: Annotated[
        list[str] | None, Option(help="Linear layers that get LoRA matrices, as in q_proj,v_proj; default: all.")
    ] = None
    train_embeddings: Annotated[
        bool,
        Option(
            "--train-embeddings/--no-train-embeddings",
            help="Train the input embeddings beside LoRA's matrices; of an 8B model they are most of what is trained.",
        ),
    ] = True
    packing: Annotated[
        str, Option(help="joined: a document attends to those packed before it. separate: it does not.")
    ] = "joined"
    seed: Annotated[int, Option(min=0, help="Random seed of new parameters, masks and the order of sequences.")] = 0
    gradient_checkpointing: Annotated[bool, Option("--gradient-checkpointing", help="Less memory, more time.")] = False
    bf16: Annotated[bool, Option("--bf16", help="Compute in bfloat16.")] = False
    save_every: Annotated[int, Option(min=1, help="Steps between checkpoints.")] = 20
    eval_every: Annotated[int | None, Option(min=1, help="Steps between measurements; default: half of the steps.")] = (
        None
    )
    eval_windows: Annotated[int, Option(min=1, help="Windows of held-out text at each length.")] = 32
    eval_lengths: Annotated[
        list[str] | None,
        Option(help="Lengths in tokens, as in 256,512; default: the trained length, its doublings, the target."),
    ] = None
    report_to: Annotated[
        list[str] | None, Option(help="Experiment tracker, such as trackio, wandb or tensorboard; may be repeated.")
    ] = None
    out: Annotated[Path, Option(help="Folder of checkpoints, loss curve and trained adapter.")] = Path(
        "results/finetune"
    )
    base: Base = None
    load_in_4bit: Annotated[
        bool, Option("--load-in-4bit", help="Quantise the base model to 4 bits (QLoRA); needs bitsandbytes.")
    ] = False
    dtype: Dtype = None
    config: ConfigFile = None
