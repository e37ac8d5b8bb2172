"""Fine-tune a patched model briefly at its new length: LoRA on attention and MLP, all of norms, embeddings, positions.

LoRA alone does not reach the target length; with norms and embeddings trained as well it comes close to full training
(Chen et al. 2023, "LongLoRA", arXiv:2309.12307, section 3.3). `Trainer` and PEFT do the work; here are their orders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.pytorch_utils import Conv1D
from transformers.trainer_callback import PrinterCallback

from hf_posenc.block import Block
from hf_posenc.errors import LengthContradiction
from hf_posenc.patching import describe, host_of, is_patched
from hf_posenc.peft_adapters import get_peft_model, save_peft_adapter
from hf_posenc.resuming import Manifest, last_complete, start_run

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Progress = Callable[[float, float], None]


def finetune_lora(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    texts: Sequence[str],
    length: int,
    steps: int,
    batch: int = 1,
    learning_rate: float = 1e-3,
    rank: int = 16,
    seed: int = 0,
    warmup: float = 0.1,
    gradient_checkpointing: bool = False,
    bf16: bool = False,
    progress: Progress | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    save_every: int = 50,
) -> PeftModel:
    """Train a LoRA adapter at ``length`` tokens.

    Args:
        model: patched (or not, for a control); it is wrapped, so use what is returned.
        tokenizer: of the model.
        texts: training documents; joined, cut into rows of ``length`` tokens and shuffled.
        length: tokens a row, at most the model's target length.
        steps: optimiser steps, with a cosine schedule from ``learning_rate`` to 0.
        batch: rows a step.
        learning_rate: peak, of AdamW; large models and long runs want less (2e-5 … 2e-4).
        rank: of the LoRA matrices.
        seed: of adapter, order of rows and masks.
        warmup: share of the steps before the peak.
        gradient_checkpointing: trade time for memory.
        bf16: compute in bfloat16 (autocast).
        progress: called after every step with the share done, 0 … 1, and the step's loss.
        output: folder of checkpoints and of the finished adapter; nothing is written without it.
        resume: go on from the last complete checkpoint in ``output``, if there is one.
        save_every: steps between checkpoints.

    Returns:
        The PEFT model in evaluation mode, its position scheme included in whatever it saves.

    Raises:
        LengthContradiction: ``length`` is longer than the model's target, or than all texts together.
        CheckpointMismatch: ``output`` holds another run, or one and ``resume`` is false.
    """
    rows = Rows(model, tokenizer, texts, length)
    block = Block.of_model(model)
    settings = {
        "length": length, "steps": steps, "batch": batch, "learning_rate": learning_rate, "rank": rank, "seed": seed,
        "warmup": warmup, "scheme": None if block is None else block.to_json(), "rows": len(rows),
    }  # fmt: skip
    if output is not None:
        start_run(Path(output), settings, resume=resume)
    set_seed(seed)
    adapted = get_peft_model(model, lora(model, rank))
    if gradient_checkpointing:
        adapted.enable_input_require_grads()  # type: ignore[operator]
        checkpointing(model, "enable")
    with nullcontext(output) if output is not None else TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=batch,
            learning_rate=learning_rate, lr_scheduler_type="cosine", warmup_steps=round(warmup * steps),
            weight_decay=0.0, max_grad_norm=1.0, seed=seed, data_seed=seed, bf16=bf16,
            save_strategy="no" if output is None else "steps", save_steps=save_every, save_total_limit=2,
            logging_strategy="steps", logging_steps=1, report_to="none", disable_tqdm=True,
            remove_unused_columns=False, dataloader_pin_memory=False, use_cpu=not torch.accelerator.is_available(),
        )  # fmt: skip
        trainer = Trainer(
            adapted, arguments, data_collator=collator(tokenizer, causal=rows.causal, seed=seed), train_dataset=rows,
            callbacks=[Report(progress), Manifest()],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=last_complete(Path(folder)) if resume else None)
    if gradient_checkpointing:
        checkpointing(model, "disable")
    if output is not None:
        save_peft_adapter(adapted, output)
    return adapted.eval()


def checkpointing(model: Any, do: str) -> None:
    """``enable`` or ``disable`` gradient checkpointing, which later versions of transformers call activation's."""
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{name}_checkpointing_{do}")()


def collator(tokenizer: PreTrainedTokenizerBase, *, causal: bool, seed: int) -> Callable[[list[Any]], dict[str, Any]]:
    """Rows to a batch with labels: the rows themselves, or for a masked model the tokens it hides."""
    if causal:
        return lambda rows: dict.fromkeys(("input_ids", "labels"), torch.stack([row["input_ids"] for row in rows]))
    return DataCollatorForLanguageModeling(tokenizer, mlm=True, seed=seed)


class Rows(Dataset):
    """Documents joined by the end-of-text token and cut into rows of equal length; what is left over is dropped.

    Raises:
        LengthContradiction: the model does not reach that far, or there is not even one row.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> None:
        base, _ = host_of(model)
        reach = describe(model).target_length if is_patched(model) else base.config.max_position_embeddings
        if not 1 < length <= reach:
            raise LengthContradiction(
                f"Rows of {length} tokens were asked for, and this model reaches {reach}. "
                "Choose a length from 2 to that, or patch the model with a larger factor."
            )
        self.causal = bool(getattr(base.config, "is_decoder", False)) or base.config.model_type != "bert"
        separator = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        end = [] if separator is None else [separator]
        encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        tokens = torch.tensor([token for document in encoded for token in (*document, *end)])
        count = len(tokens) // length
        if count == 0:
            raise LengthContradiction(
                f"The texts have {len(tokens)} tokens, less than one row of {length}. Give more text, or shorter rows."
            )
        self.rows = tokens[: count * length].view(count, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index]}


def lora(model: nn.Module, rank: int) -> LoraConfig:
    """LoRA on every linear layer of the base, and whole copies of norms, input embeddings and position parameters.

    A position table that the scheme put out of use is none of these and stays frozen. So do embeddings that are tied to
    an output layer and could not be kept so: PEFT knows how for those called ``embed_tokens``.
    """
    from peft import LoraConfig
    from peft.utils.constants import EMBEDDING_LAYER_NAMES

    base, _ = host_of(model)
    inner = [(name, module) for name, module in base.named_modules() if name and "posenc" not in name.split(".")]
    linear = {leaf(name) for name, module in inner if isinstance(module, (nn.Linear, Conv1D))}
    whole = {leaf(name) for name, module in inner if "Norm" in type(module).__name__}
    embeddings = next(leaf(name) for name, module in inner if module is base.get_input_embeddings())
    tied = bool(getattr(base.config, "tie_word_embeddings", False))
    if not tied or embeddings in EMBEDDING_LAYER_NAMES:
        whole.add(embeddings)
    if any("posenc" in name.split(".") for name, _ in base.named_parameters()):
        whole.add("posenc")
    return LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=sorted(linear), modules_to_save=sorted(whole),
        exclude_modules=r".*\bposenc\b.*", ensure_weight_tying=tied and embeddings in whole,
        fan_in_fan_out=any(isinstance(module, Conv1D) for _, module in inner),
    )  # fmt: skip


def leaf(name: str) -> str:
    """The last part of a module's name."""
    return name.rpartition(".")[2]


class Report(TrainerCallback):
    """Hands the share done and the loss to whoever watches."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """After every step."""
        if self.progress is not None and logs and "loss" in logs:
            self.progress(min(1.0, state.global_step / state.max_steps), logs["loss"])
