"""Fine-tune a patched model briefly at its new length."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, set_seed
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback

from hf_posenc.checkpoints.peft import get_peft_model
from hf_posenc.core.files.atomic import folder_created, write_json
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import move_in
from hf_posenc.errors import LengthContradiction
from hf_posenc.patching.rollback import rollback_on_error
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.patching.stored.peft_sidecar import PARAMETERS, SIDECAR
from hf_posenc.patching.stored.scheme_config import SchemeConfig
from hf_posenc.training.chunked_loss import chunked_loss
from hf_posenc.training.config import Training
from hf_posenc.training.dataset import (
    PackedRows,
    SeparatedRows,
    check_separate_packing,
    documents,
    held_out_windows,
)
from hf_posenc.training.loss_curve import Point, points
from hf_posenc.training.masked_batches import MaskingCollator, masked_loss
from hf_posenc.training.methods import Method, method_of
from hf_posenc.training.resume import (
    UNFINISHED,
    RunFinished,
    StopAtLastStep,
    WriteManifest,
    last_complete,
    start_run,
)
from hf_posenc.training.run_folder import check_checkpoint_space, exclusive_folder
from hf_posenc.training.validate import (
    check_callbacks,
    check_model_and_settings,
    check_tokenizer,
    check_tokens,
    documents_of,
    training_arguments,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CURVE = "curve.json"
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class Tuned:
    """What fine-tuning left.

    Attributes:
        model: in evaluation mode: a `PeftModel` whose ``save_pretrained`` writes the scheme too, or the model itself.
        curve: loss against steps.
        first: whether this is the process that reports, of those that share the work.
    """

    model: Any
    curve: list[Point]
    first: bool = True


def finetune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str] | Dataset,
    training: Training,
    *,
    held_out: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Tuned:
    """Train a model on rows of ``training.length`` tokens.

    Under ``accelerate launch`` all processes share the rows; each step then reads ``batch · accumulate`` in every one.

    Args:
        model: patched (or not, for a control); a method of PEFT wraps it, so use what is returned.
        tokenizer: of the model.
        texts: training documents; or rows of your own, ``{"input_ids", "labels", …}`` of tensors ``[token]``.
        training: what to do.
        held_out: documents to measure on before, between and after the steps, at ``training.eval_lengths``.
        output: folder of checkpoints, curve and result; nothing is written without it.
        resume: go on from the last complete checkpoint in ``output``, if there is one.
        progress: called after every step with the share done, 0 … 1, and the step's loss.
        callbacks: more of `Trainer`'s.
        arguments: more of `TrainingArguments`, which win over what follows from ``training``.

    Raises:
        LengthContradiction: the model does not reach ``length``, or the texts do not fill it.
        TrainingImpossible: this model cannot be trained so.
        WrongKind: an argument is none of its kind.
        WeightsNotFinite: a weight of the model is no number.
        CheckpointMismatch: ``output`` holds another run, or one and ``resume`` is false.
        FolderInUse: another run writes to ``output``.
        NoRoom: its disk has less room than the checkpoints take.
    """
    check_model_and_settings(model, training)
    texts = documents_of("texts", texts)
    held_out = None if held_out is None else documents_of("held_out", held_out)
    folder = None if output is None else Path(folder_to_write(output))
    check_callbacks(callbacks)
    causal = is_causal(model)
    if held_out is not None or not isinstance(texts, Dataset):  # rows that are ready need none
        check_tokenizer(tokenizer, causal=causal)
    method = method_of(training.method, model, causal=causal, rank=training.rank)
    rows = training_rows(model, tokenizer, texts, training, method)
    windows = None if held_out is None else held_out_rows(model, tokenizer, held_out, training)
    with ExitStack() as held:
        place = folder or Path(held.enter_context(TemporaryDirectory()))
        checkpoint = last_complete(place) if resume else None
        asked = training_arguments(
            trainer_settings(training, str(place), keep=folder is not None)
            | evaluation_settings(training, windows, fresh=checkpoint is None),
            arguments,
        )
        set_seed(training.seed)
        collate = MaskingCollator(tokenizer, training.seed)
        trained: Any = model
        with rollback_on_error(model):
            if method.configure is not None:
                trained = get_peft_model(model, method.configure(model, training.rank))
            if folder is not None:
                claim_folder(held, folder, trained, run_settings(model, training, len(rows)), resume=resume)
        trainer = Trainer(
            trained,
            asked,
            data_collator=collate,
            train_dataset=rows,
            eval_dataset=windows,
            callbacks=[ProgressReport(progress), WriteManifest(), StopAtLastStep(), collate, *callbacks],
            compute_loss_func=None if causal else masked_loss,
            optimizers=(method.optimiser(trained, training.learning_rate) if method.optimiser else None, None),
        )
        trainer.remove_callback(PrinterCallback)
        with (
            gradient_checkpointing(trained, model, training),
            chunked_loss(model, training.chunked_loss, causal=causal),
            suppress(RunFinished),
        ):
            trainer.train(resume_from_checkpoint=checkpoint)
        curve = points(trainer.state.log_history)
        if folder is not None:
            save(trainer, folder, curve)
    return Tuned(trained.eval(), curve, trainer.is_world_process_zero())


def claim_folder(held: ExitStack, folder: Path, trained: nn.Module, settings: dict[str, Any], *, resume: bool) -> None:
    """Have ``folder`` for this run alone until ``held`` ends; one that is new goes again if it cannot be had.

    Raises:
        PosEncError: another run has it, or its disk has no room.
    """
    state = PartialState(cpu=not torch.accelerator.is_available())
    with folder_created(folder):
        if state.is_main_process:
            held.enter_context(exclusive_folder(folder))
        check_checkpoint_space(folder, trained)
        with state.main_process_first():
            start_run(folder, settings, resume=resume)


def run_settings(model: nn.Module, training: Training, rows: int) -> dict[str, Any]:
    """What a run and its continuation must share, for its folder."""
    block = SchemeConfig.of_model(model)
    shared = {name: value for name, value in training.to_dict().items() if name != "save_every"}
    return {**shared, "scheme": None if block is None else block.to_json(), "rows": rows}


def is_causal(model: nn.Module) -> bool:
    """Whether a model predicts next tokens."""
    config = base_model_of(model)[0].config
    return bool(getattr(config, "is_decoder", False)) or config.model_type != "bert"


def lengths_of(model: nn.Module) -> tuple[int, int]:
    """Trained and target length of a model, in tokens."""
    if is_patched(model):
        report = describe(model)
        return report.trained_length, report.target_length
    length: Any = base_model_of(model)[0].config.max_position_embeddings
    return length, length


def training_rows(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Any, training: Training, method: Method
) -> Any:
    """What to train on.

    Raises:
        LengthContradiction: the model does not reach that far, or there is not even one row.
        TrainingImpossible: documents cannot be read apart as asked.
    """
    _, reach = lengths_of(model)
    seen = training.length + (training.rank if method.virtual_tokens else 0)
    if seen > reach:
        raise LengthContradiction(
            f"Rows of {seen} tokens were asked for, and this model reaches {reach}. "
            "Choose a shorter length, or patch the model with a larger factor."
        )
    causal = is_causal(model)
    if training.packing == "separate":
        check_separate_packing(causal, virtual_tokens=method.virtual_tokens)
    if isinstance(texts, Dataset):
        return texts
    read = documents(tokenizer, texts)
    check_tokens(model, read)
    if training.packing == "separate":
        return SeparatedRows(read, training.length)
    return PackedRows(read, training.length, causal=causal)


def held_out_rows(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], training: Training
) -> dict[str, Any]:
    """What to measure on, by length.

    Raises:
        LengthContradiction: the model does not reach a length, or the texts do not fill it.
    """
    trained, target = lengths_of(model)
    lengths = sorted(training.eval_lengths) or doubling_lengths(trained, target)
    if not 2 <= lengths[0] <= lengths[-1] <= target:
        raise LengthContradiction(
            f"Lengths {lengths} were to be measured, and this model reaches {target}. Choose lengths from 2 to that."
        )
    read = documents(tokenizer, texts)
    check_tokens(model, read)
    mask = None if is_causal(model) else tokenizer.mask_token_id
    return dict(held_out_windows(read, lengths, count=training.eval_windows, mask=mask))


def doubling_lengths(trained: int, target: int) -> list[int]:
    """``trained``, doubled while it stays below ``target``, and ``target``."""
    lengths = [trained]
    while 2 * lengths[-1] < target:
        lengths.append(2 * lengths[-1])
    return sorted({*lengths, target})


def trainer_settings(training: Training, folder: str, *, keep: bool) -> dict[str, Any]:
    """`TrainingArguments` of a run."""
    return {
        "output_dir": folder,
        "max_steps": training.steps,
        "per_device_train_batch_size": training.batch,
        "per_device_eval_batch_size": training.batch,
        "gradient_accumulation_steps": training.accumulate,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": round(training.warmup * training.steps),
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "seed": training.seed,
        "data_seed": training.seed,
        "bf16": training.bf16,
        "save_strategy": "steps" if keep else "no",
        "save_steps": training.save_every,
        "save_total_limit": 2,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
    }


def evaluation_settings(training: Training, windows: Mapping[str, Any] | None, *, fresh: bool) -> dict[str, Any]:
    """`TrainingArguments` of the measurements; a resumed run has the one before its first step."""
    if windows is None:
        return {"eval_strategy": "no"}
    return {
        "eval_strategy": "steps",
        "eval_steps": training.eval_every,
        "eval_on_start": fresh,
        "prediction_loss_only": True,
    }


@contextmanager
def gradient_checkpointing(trained: Any, model: Any, training: Training) -> Iterator[None]:
    """Gradient checkpointing while this lasts, if it is asked for."""
    if not training.gradient_checkpointing:
        yield
        return
    if trained is not model:
        trained.enable_input_require_grads()
    # Later versions of transformers call it activation's.
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{name}_checkpointing_enable")()
    try:
        yield
    finally:
        getattr(model, f"{name}_checkpointing_disable")()


def save(trainer: Trainer, folder: Path, curve: Sequence[Point]) -> None:
    """Write what was trained, gathered from all processes, and last the curve, by which a finished run is known."""
    first, staged = trainer.is_world_process_zero(), folder / UNFINISHED
    if first:
        shutil.rmtree(staged, ignore_errors=True)
    try:
        trainer.save_model(str(staged))
        if first:
            (staged / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # pickled, and run.json says the same
            write_json(staged / CURVE, [point.to_dict() for point in curve])
            move_in(staged, folder, companions=(SIDECAR, PARAMETERS), last=(CURVE,))
    finally:
        if first:
            shutil.rmtree(staged, ignore_errors=True)


class ProgressReport(TrainerCallback):
    """Hands the share done and the loss to whoever watches."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """After every step."""
        if self.progress is not None and state.is_world_process_zero and logs and "loss" in logs:
            self.progress(min(1.0, state.global_step / state.max_steps), logs["loss"])
