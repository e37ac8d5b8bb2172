"""Fine-tune a patched model briefly at its new length."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback

from hf_posenc.checkpoints.peft import get_peft_model
from hf_posenc.core.files.atomic import folder_created
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.patching.rollback import rollback_on_error
from hf_posenc.patching.stored.scheme_config import SchemeConfig
from hf_posenc.texts import TextSource
from hf_posenc.training.chunked_loss import chunked_loss
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import OnRead
from hf_posenc.training.loss_curve import Point, points
from hf_posenc.training.masked_batches import MaskingCollator, masked_loss
from hf_posenc.training.methods import method_of
from hf_posenc.training.resume import (
    RunFinished,
    StopAtLastStep,
    WriteManifest,
    last_complete,
    start_run,
)
from hf_posenc.training.rows import count_of, held_out_rows, is_causal, training_rows
from hf_posenc.training.run_folder import check_checkpoint_space, exclusive_folder, existing_parent, save_result
from hf_posenc.training.trainer_settings import evaluation_settings, gradient_checkpointing, trainer_settings
from hf_posenc.training.validate import (
    check_callbacks,
    check_model_and_settings,
    check_tokenizer,
    source_of,
    training_arguments,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Progress = Callable[[float, float], None]
Texts = Sequence[str | Path] | Path | TextSource | Any
"""Documents: texts and paths, or an object of `datasets`."""


@dataclass(frozen=True)
class Tuned:
    """The result of fine-tuning.

    Attributes:
        model: in evaluation mode; a `PeftModel` whose ``save_pretrained`` writes the scheme, or the model itself.
        curve: loss against steps.
        first: whether this process is the one that reports (global rank 0).
    """

    model: Any
    curve: list[Point]
    first: bool = True


def finetune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts | Dataset,
    training: Training,
    *,
    held_out: Texts | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    on_read: OnRead | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Tuned:
    """Train a model on rows of ``training.length`` tokens.

    Under ``accelerate launch`` all processes share the rows; each step then reads ``batch · accumulate`` in every one.

    Args:
        model: patched (or not, for a control); a method of PEFT wraps it, so use what is returned.
        tokenizer: of the model.
        texts: training documents: a list of texts (`str`) and files or folders (`Path`), a `datasets` object, or a
            `TextSource`; or rows of your own, ``{"input_ids", "labels", …}`` of tensors ``[token]``. Iterable datasets
            are read while they are trained on, everything else before, into a memory-mapped file on the disk of
            ``output``.
        training: settings of the run.
        held_out: documents to measure on before, between and after the steps, at ``training.eval_lengths``; likewise.
        output: folder of checkpoints, curve and result; nothing is written without it.
        resume: continue from the last complete checkpoint in ``output``, if there is one.
        progress: called after every step with the share done, 0 … 1, and the step's loss.
        on_read: called with the documents and tokens read so far, before the first step.
        callbacks: more of `Trainer`'s.
        arguments: more `TrainingArguments`, which override those that follow from ``training``.

    Raises:
        LengthContradiction: the model does not reach ``length``, or the texts do not fill it.
        TrainingImpossible: this model cannot be trained so.
        UnreadableDocuments: a text cannot be read.
        WrongKind: an argument has a wrong type.
        WeightsNotFinite: a weight of the model is NaN or infinite.
        CheckpointMismatch: ``output`` holds another run, or one and ``resume`` is false.
        FolderInUse: another run writes to ``output``.
        NoDiskSpace: its disk has less free space than the checkpoints take.
    """
    check_model_and_settings(model, training)
    source = source_of("texts", texts)
    measured_on = None if held_out is None else source_of("held_out", held_out)
    folder = None if output is None else Path(folder_to_write(output))
    check_callbacks(callbacks)
    causal = is_causal(model)
    if measured_on is not None or not isinstance(source, Dataset):  # rows that are ready need none
        check_tokenizer(tokenizer, causal=causal)
    method = method_of(training.method, model, causal=causal, rank=training.rank)
    rows = training_rows(
        model, tokenizer, source, training, method, held_out=measured_on, folder=existing_parent(folder),
        on_read=on_read,
    )  # fmt: skip
    windows = None if measured_on is None else held_out_rows(model, tokenizer, measured_on, training)
    with ExitStack() as held:
        path = folder or Path(held.enter_context(TemporaryDirectory()))
        checkpoint = last_complete(path) if resume else None
        asked = training_arguments(
            trainer_settings(training, str(path), keep=folder is not None)
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
                claim_folder(held, folder, trained, run_settings(model, training, count_of(rows)), resume=resume)
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
            save_result(trainer, folder, curve)
    return Tuned(trained.eval(), curve, trainer.is_world_process_zero())


def claim_folder(held: ExitStack, folder: Path, trained: nn.Module, settings: dict[str, Any], *, resume: bool) -> None:
    """Lock ``folder`` for this run until ``held`` ends; a new folder is removed again if that fails.

    Raises:
        PosEncError: another run has it, or its disk has too little free space.
    """
    state = PartialState(cpu=not torch.accelerator.is_available())
    with folder_created(folder):
        if state.is_main_process:
            held.enter_context(exclusive_folder(folder))
        check_checkpoint_space(folder, trained)
        with state.main_process_first():
            start_run(folder, settings, resume=resume)


def run_settings(model: nn.Module, training: Training, rows: int | None) -> dict[str, Any]:
    """The settings that a run and its continuation must share."""
    stored = SchemeConfig.of_model(model)
    shared = {name: value for name, value in training.to_dict().items() if name != "save_every"}
    return {**shared, "scheme": None if stored is None else stored.to_json(), "rows": rows}


class ProgressReport(TrainerCallback):
    """Pass the share of steps done and the loss to a function."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """After every step."""
        if self.progress is not None and state.is_world_process_zero and logs and "loss" in logs:
            self.progress(min(1.0, state.global_step / state.max_steps), logs["loss"])
