"""The folder of a run: locked and checked for free space before any work starts, and filled with the result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.free_space import check_disk_space
from hf_posenc.core.files.staged import move_in
from hf_posenc.errors import FolderInUse
from hf_posenc.patching.stored.peft_sidecar import PARAMETERS, SIDECAR
from hf_posenc.training.loss_curve import Point
from hf_posenc.training.resume import UNFINISHED

try:
    import fcntl
except ImportError:  # Windows, where two runs are not kept apart
    fcntl = None  # type: ignore[assignment]

CURVE = "curve.json"
KEPT_COPIES = 3
"""Copies of the trained parameters: two checkpoints are kept while a third, or the result, is written."""
MOMENTS = 2
"""Moments of AdamW in every checkpoint, each as large as the weights."""


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


def existing_parent(folder: Path | None) -> Path | None:
    """The nearest folder that exists already: ``folder`` itself or one above it."""
    return None if folder is None else next(one for one in (folder, *folder.absolute().parents) if one.is_dir())


def check_checkpoint_space(folder: Path, trained: nn.Module) -> None:
    """Refuse a run whose checkpoints will not fit.

    Raises:
        NoDiskSpace: the disk of ``folder`` has less free space than they take.
    """
    size = sum(p.numel() * p.element_size() for p in trained.parameters() if p.requires_grad)
    check_disk_space(folder, KEPT_COPIES * (1 + MOMENTS) * size, "Checkpoints")


def save_result(trainer: Trainer, folder: Path, curve: Sequence[Point]) -> None:
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
