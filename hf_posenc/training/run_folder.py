"""The folder of a run: locked and checked for free space before the first step, and filled with the result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME

from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.checkpoints.model_digest import sampled_weights_digest
from hf_posenc.core.files.atomic import folder_created, write_json
from hf_posenc.core.files.paths import check_disk_space
from hf_posenc.core.files.staged import move_in
from hf_posenc.errors import FolderInUse
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR
from hf_posenc.patching.scheme_config import SchemeConfig, digest_of_own
from hf_posenc.schemes.base import Scheme
from hf_posenc.training.config import Training
from hf_posenc.training.loss_curve import LossPoint
from hf_posenc.training.resume import CODE, CORPUS, MODEL, ROWS, UNFINISHED, start_run
from hf_posenc.training.rows import corpus_digest, count_of
from hf_posenc.training.trained_layers import RunStart

try:
    import fcntl
except ImportError:  # Windows, where two runs are not kept apart
    fcntl = None  # type: ignore[assignment]

CURVE = "curve.json"
FREE_SETTINGS = ("save_every", "report_to")  # which a continued run may have otherwise
FLOAT32 = 4  # bytes of a number that is trained
KEPT_COPIES = 3
"""Copies of the trained parameters: two checkpoints are kept while a third, or the result, is written."""
MOMENTS = 2
"""Moments of AdamW in every checkpoint, each as large as the weights."""


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
        shared = of_main_process(settings, state.num_processes)
        with state.main_process_first():
            start_run(folder, shared, resume=resume)


def shared_settings(model: nn.Module, training: Training, rows: Any, *, whole: bool) -> dict[str, Any]:
    """The settings that a run and its continuation must share.

    Args:
        model: before a method of PEFT wraps it.
        training: settings of the run.
        rows: to train on.
        whole: whether checkpoints hold all weights. Those of a model from random weights are then not compared, as
            nobody can draw them again.
    """
    stored = SchemeConfig.of_model(model)
    shared = {name: value for name, value in training.to_dict().items() if name not in FREE_SETTINGS}
    quantised = {"quantised": True} if is_quantised(model) else {}
    loaded = bool(getattr(model.config, "name_or_path", ""))
    code = own_code_digest(model)
    return {
        **shared, **quantised, **({CODE: code} if code else {}), "scheme": None if stored is None else stored.to_json(),
        MODEL: sampled_weights_digest(model, values=loaded or not whole),
        ROWS: count_of(rows), CORPUS: corpus_digest(rows),
    }  # fmt: skip


def own_code_digest(model: nn.Module) -> str:
    """Digest of the code of the model's schemes that are not of this package; empty where there are none."""
    schemes = [part for module in model.modules() if isinstance(module, Scheme) for part in module.schemes]
    return digest_of_own({type(scheme) for scheme in schemes})


def of_main_process(settings: dict[str, Any], processes: int) -> dict[str, Any]:
    """Settings with the main process's digest of the model: under FSDP others may not have loaded its weights."""
    return settings | {MODEL: broadcast_object_list([settings[MODEL]])[0]} if processes > 1 else settings


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Lock ``folder`` (made if need be) during the block. The lock is released when the process ends, however it ends.

    Raises:
        FolderInUse: another run has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUse(
                f"{folder} is in use by another run. Wait for that to end, or choose another folder."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def check_checkpoint_space(folder: Path, trained: nn.Module) -> None:
    """Refuse a run whose checkpoints will not fit.

    Raises:
        NoDiskSpace: the disk of ``folder`` has less free space than they take.
    """
    size = sum(FLOAT32 * p.numel() for p in trained.parameters() if p.requires_grad)
    check_disk_space(folder, KEPT_COPIES * (1 + MOMENTS) * size, "Checkpoints")


def save_result(trainer: Trainer, folder: Path, curve: Sequence[LossPoint]) -> None:
    """Save the trained model, gathered from all processes, and last the loss curve, which marks a run as finished."""
    first, unfinished = trainer.is_world_process_zero(), folder / UNFINISHED
    if first:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        trainer.save_model(str(unfinished))
        if first:
            (unfinished / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # pickled, and run.json says the same
            write_json(unfinished / CURVE, [point.to_dict() for point in curve])
            move_in(unfinished, folder, companions=(SIDECAR, PARAMETERS), last=(CURVE,))
    finally:
        if first:
            shutil.rmtree(unfinished, ignore_errors=True)


def facts_of(training: Training, start: RunStart, curve: Sequence[LossPoint]) -> dict[str, Any]:
    """What the model card of an adapter says of its training."""
    names = ("method", "rank", "steps", "length", "batch", "accumulate")
    facts = {name: f"{value:,}" if isinstance(value := getattr(training, name), int) else value for name in names}
    facts |= {"learning_rate": f"{start.learning_rate:g}"}
    facts |= {f"trained {kind}": f"{count:,}" for kind, count in start.parameters.items()}
    measured = [point.held_out for point in curve if point.held_out]
    for length in measured[-1] if measured else ():
        before, after = measured[0][length], measured[-1][length]
        facts[f"held-out loss at {length:,} tokens"] = f"{before:.3f} before, {after:.3f} after"
    return facts
