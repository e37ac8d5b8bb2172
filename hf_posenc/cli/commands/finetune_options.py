"""The options of ``hf-posenc finetune`` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from hf_posenc.cli.text_arguments import SOURCES

Scheme = Annotated[
    str | None, Option("--scheme", "-s", help="Scheme to patch in first; default: the scheme of the checkpoint.")
]
TrainedLength = Annotated[
    int | None, Option(help="Pre-training context length in tokens, where the configuration is wrong.")
]
TrainingText = Annotated[
    list[str] | None, Option(help=f"Training text: {SOURCES}; default: sources of the standard library.")
]
HeldOut = Annotated[
    list[str] | None,
    Option(help="Evaluation text, named likewise; default: other sources of the standard library."),
]
Streaming = Annotated[
    bool, Option("--streaming", help="Read the training text while training, in its order, instead of before.")
]
Recipe = Annotated[
    str,
    Option(
        help="Named settings, which other options override: full_length, growing_length, shifted_sparse, pose or drope."
    ),
]
Length = Annotated[int | None, Option(min=2, help="Training sequence length in tokens; default: as the recipe has.")]
LengthStages = Annotated[
    int | None, Option(min=1, help="Stages in which training sequences double in length up to that.")
]
AttentionGroups = Annotated[
    int | None,
    Option(min=1, help="Groups of a training sequence within which heads attend, half of them shifted (S²-Attn)."),
]
Steps = Annotated[int | None, Option(min=1, help="Optimiser steps; default: 150, or as the recipe has.")]
Epochs = Annotated[float | None, Option(help="Times that the training text is read, instead of --steps.")]
Method = Annotated[str | None, Option(help="lora (default), dora, lora_plus, ia3, prompt, prefix or full.")]
Batch = Annotated[
    int | None, Option(min=1, help="Sequences per process and forward pass; default: 1, or as the recipe has.")
]
Accumulate = Annotated[int, Option(min=1, help="Batches per optimiser step.")]
LearningRate = Annotated[
    float | None, Option(help="Peak learning rate; default: by method and size of the model, as advise prints it.")
]
Schedule = Annotated[str, Option(help="Of the learning rate: cosine, linear, constant_with_warmup or inverse_sqrt.")]
Warmup = Annotated[float, Option(help="Share of the steps before the peak learning rate.")]
WeightDecay = Annotated[float, Option(help="Of AdamW.")]
Rank = Annotated[int, Option(min=1, help="Rank of LoRA's matrices; for prompt and prefix, virtual tokens.")]
Alpha = Annotated[float | None, Option(help="Of LoRA, scaled by alpha / rank; default: twice the rank.")]
TargetModules = Annotated[
    list[str] | None, Option(help="Linear layers that get LoRA matrices, as in q_proj,v_proj; default: all.")
]
TrainEmbeddings = Annotated[
    bool,
    Option(
        "--train-embeddings/--no-train-embeddings",
        help="Train the input embeddings beside LoRA's matrices; of an 8B model they are most of what is trained.",
    ),
]
Packing = Annotated[str, Option(help="joined: a document attends to those packed before it. separate: it does not.")]
Seed = Annotated[int, Option(min=0)]
GradientCheckpointing = Annotated[bool, Option("--gradient-checkpointing", help="Less memory, more time.")]
Bf16 = Annotated[bool, Option("--bf16", help="Compute in bfloat16.")]
SaveEvery = Annotated[int, Option(min=1, help="Steps between checkpoints.")]
EvalEvery = Annotated[int | None, Option(min=1, help="Steps between measurements; default: half of the steps.")]
EvalWindows = Annotated[int, Option(min=1, help="Windows of held-out text at each length.")]
EvalLengths = Annotated[
    list[str] | None,
    Option(help="Lengths in tokens, as in 256,512; default: the trained length, doubled up to the target."),
]
ReportTo = Annotated[
    list[str] | None, Option(help="Experiment tracker, such as trackio, wandb or tensorboard; may be repeated.")
]
Out = Annotated[Path, Option(help="Folder of checkpoints, loss curve and trained adapter.")]
Resume = Annotated[bool, Option("--resume", help="Resume from the last complete checkpoint in --out.")]
LoadIn4Bit = Annotated[
    bool, Option("--load-in-4bit", help="Quantise the base model to 4 bits (QLoRA); needs bitsandbytes.")
]
FindLearningRate = Annotated[
    bool,
    Option(
        "--find-learning-rate",
        help="Instead of the run, try rising learning rates on its text for some steps, and print which one to pass.",
    ),
]
