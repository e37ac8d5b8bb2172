"""Fine-tune a patched model briefly at its new length."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.utils.data import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainingArguments, set_seed

from hf_posenc.checkpoints.model_name import last_complete, step_of
from hf_posenc.core.constants import HALF
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.lazy import explained_imports
from hf_posenc.patching.patch import rollback_on_error
from hf_posenc.patching.peft_sidecar import write_adapter_card
from hf_posenc.patching.state import is_patched
from hf_posenc.texts import DatasetObject, HubDataset, TextPart, TextSource
from hf_posenc.training.chunked_loss import chunked_loss
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import OnRead
from hf_posenc.training.length_trainer import (
    LabellingCollator,
    LengthTrainer,
    float32_masters,
    masked_loss,
    training_arguments,
)
from hf_posenc.training.loss_curve import LossPoint, points
from hf_posenc.training.methods import adapted, peft_config_of
from hf_posenc.training.rows import HeldOutSplit
from hf_posenc.training.run_folder import (
    RunFinished,
    StopAtLastStep,
    WriteManifest,
    check_folder,
    claim_folder,
    facts_of,
    save_result,
    shared_settings,
)
from hf_posenc.training.run_inputs import RunInputs, read_inputs
from hf_posenc.training.trained_layers import RunStart, trained_by_kind

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Progress = Callable[[float, float], None]
Texts: TypeAlias = "Sequence[TextPart] | Path | HubDataset | DatasetObject | TextSource"
"""Documents: texts and paths, or an object of `datasets`."""


@dataclass(frozen=True)
class Tuned:
    """The result of fine-tuning.

    Attributes:
        model: the model itself, or a `PeftModel` whose ``save_pretrained`` writes the scheme; in evaluation mode.
        curve: loss against steps.
        start: the trained parameters and the learning rate.
        first: whether this process is the one that reports (global rank 0).
    """

    model: Any
    curve: list[LossPoint]
    start: RunStart
    first: bool = True


def finetune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts | Dataset,
    training: Training,
    *,
    held_out: Texts | HeldOutSplit | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    announce: Callable[[RunStart], None] | None = None,
    progress: Progress | None = None,
    on_read: OnRead | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Tuned:
    """Train a model on rows of ``training.length`` tokens.

    Under ``accelerate launch`` all processes share the rows. In each step every process reads ``batch · accumulate``.

    If the run fails or is interrupted, the modules, modes and ``requires_grad`` of ``model`` are restored, and ``out``
    keeps the checkpoints. Weights that were trained in place (``method="full"``) keep their new values.

    Args:
        model: patched, or unpatched as a control. Use the returned model, because PEFT wraps this one.
        tokenizer: tokenizer of the model.
        texts: training documents: a list of texts (`str`) and files or folders (`Path`), a `datasets` object, or a
            `TextSource`; or your own rows, ``{"input_ids", "labels", …}`` of tensors ``[token]``. Texts are tokenised
            to a memory-mapped file on the disk of ``out``; of an iterable dataset, as many as the steps need.
        training: settings of the run.
        held_out: documents whose loss is measured before, during and after training, at ``training.eval_lengths``, in
            the same forms as ``texts``. `HeldOutSplit` holds out the end of ``texts``.
        out: folder of checkpoints, curve and result; nothing is written without it.
        resume: continue from the last complete checkpoint in ``out``, if there is one. Pass the ``model`` and ``texts``
            of the first call. ``steps`` may be larger; the learning-rate schedule then ends there.
        announce: called before the first step with the trained parameters by kind and the learning rate.
        progress: called after every step with the share done, 0 … 1, and the step's loss.
        on_read: called with the documents and tokens read so far, before the first step.
        callbacks: additional callbacks of `Trainer`.
        arguments: additional `TrainingArguments`; they override the values from ``training``.

    Raises:
        LengthContradiction: ``length`` exceeds the target length of the model, or the texts do not fill one row.
        TrainingImpossible: this model cannot be trained with these settings.
        UnreadableDocuments: a text cannot be read.
        WrongKind: an argument has a wrong type.
        WeightsNotFinite: a weight of the model is NaN or infinite.
        CheckpointMismatch: ``out`` holds another run, or a run while ``resume`` is false.
        FolderInUse: another run writes to ``out``.
        NoDiskSpace: the checkpoints do not fit on the disk of ``out``.
    """
    folder = None if out is None else Path(folder_to_write(out))
    if folder is not None:
        check_folder(folder, resume=resume)  # before texts are read, which may take hours
    inputs = read_inputs(model, tokenizer, texts, training, held_out=held_out, folder=folder, on_read=on_read)
    settings = shared_settings(model, inputs.training, inputs.rows, trains_all=inputs.trains_all)
    masters = inputs.trains_all and any(w.dtype in HALF for w in model.parameters() if w.requires_grad)
    with ExitStack() as stack:
        stack.enter_context(explained_imports())
        path = folder or Path(stack.enter_context(TemporaryDirectory()))
        checkpoint = last_complete(path) if resume else None
        trainer_arguments = training_arguments(
            inputs.training, inputs.windows, arguments, folder=str(path), keep=folder is not None, autocast=masters,
            fresh=checkpoint is None,
        )  # fmt: skip
        set_seed(inputs.training.seed)
        stack.enter_context(rollback_on_error(model))
        trained = adapted(model, peft_config_of(model, inputs.training))
        if folder is not None:
            claim_folder(stack, folder, trained, settings, inputs.held_out, resume=resume)
        trainer = trainer_of(trained, tokenizer, inputs, trainer_arguments, [ProgressReport(progress), *callbacks])
        steps_done = 0 if checkpoint is None else step_of(Path(checkpoint))
        start = RunStart(
            trained_by_kind(trained), trained.num_parameters(), inputs.rate.value, inputs.rate.source,
            resumed_from=steps_done if resume else None, held_out_tokens=inputs.held_out_tokens,
        )  # fmt: skip
        if announce is not None and trainer.is_world_process_zero():
            announce(start)
        with float32_masters(model) if masters else nullcontext():
            train(trainer, model, inputs, checkpoint)
        curve = points(trainer.state.log_history)
        if folder is not None:
            save_result(trainer, folder, curve)
            if trainer.is_world_process_zero() and not inputs.trains_all and is_patched(trained):
                write_adapter_card(trained, folder, facts_of(inputs.training, start, curve))
    return Tuned(trained.eval(), curve, start, trainer.is_world_process_zero())


def trainer_of(
    trained: Any,
    tokenizer: PreTrainedTokenizerBase,
    inputs: RunInputs,
    arguments: TrainingArguments,
    callbacks: Sequence[TrainerCallback],
) -> LengthTrainer:
    """Build the trainer of a run."""
    collate = LabellingCollator(tokenizer, inputs.training.seed, causal=inputs.causal)
    trainer = LengthTrainer(
        trained,
        arguments,
        data_collator=collate,
        train_dataset=inputs.rows,
        eval_dataset=inputs.windows,
        callbacks=[WriteManifest(), StopAtLastStep(), collate, *callbacks],
        compute_loss_func=None if inputs.causal else masked_loss,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(trainer: LengthTrainer, model: PreTrainedModel, inputs: RunInputs, checkpoint: str | None) -> None:
    """Train to the last step, starting from ``checkpoint`` unless it is None."""
    training, smoothed = inputs.training, trainer.args.label_smoothing_factor > 0
    with (
        chunked_loss(model, training.chunked_loss, causal=inputs.causal, smoothed=smoothed),
        suppress(RunFinished),
    ):
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)  # no autocast after training


class ProgressReport(TrainerCallback):
    """Call ``progress`` with the share of steps done and the loss."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Report after every step."""
        if self.progress is not None and state.is_world_process_zero and logs and "loss" in logs:
            self.progress(min(1.0, state.global_step / state.max_steps), logs["loss"])
