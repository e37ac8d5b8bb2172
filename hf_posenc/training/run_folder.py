"""Run folder: lock and check it before the first step, resume from it after an interruption, save the result in it.

`Trainer` writes a checkpoint file by file and resumes from the highest number, complete or not. Here the last file of a
checkpoint is a manifest of the other files. A folder belongs to one run, whose settings are in ``run.json``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.checkpoints.model_digest import sampled_weights_digest
from hf_posenc.checkpoints.model_name import HELD_OUT, MANIFEST, RUN, checkpoint_folders, file_sizes
from hf_posenc.core.files.atomic import folder_created, write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.paths import check_disk_space, check_not_taken
from hf_posenc.core.files.staged import move_in
from hf_posenc.errors import CheckpointMismatch, FolderInUse, shown
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR
from hf_posenc.patching.scheme_config import SchemeConfig, digest_of_own
from hf_posenc.schemes.base import Scheme
from hf_posenc.training.config import Training
from hf_posenc.training.dataset import PackedRows
from hf_posenc.training.held_out import HeldOut
from hf_posenc.training.loss_curve import LossPoint
from hf_posenc.training.rows import count_of
from hf_posenc.training.trained_layers import RunStart

try:
    import fcntl
except ImportError:  # Windows, where two runs are not kept apart
    fcntl = None  # type: ignore[assignment]

CURVE = "curve.json"
WRITTEN = (
    "config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json", "config.yaml", "README.md",
    HELD_OUT, CURVE, "curve.png",
)  # fmt: skip
"""Files of a run whose names other programs use as well."""
FREE_SETTINGS = ("save_every", "report_to")  # which a resumed run may change
FLOAT32 = 4  # bytes of a trained parameter
KEPT_COPIES = 3
"""Copies of the trained parameters: two checkpoints are kept while a third, or the result, is written."""
MOMENTS = 2
"""Moments of AdamW in every checkpoint, each as large as the weights."""
UNFINISHED = "unfinished"
RETIRED = {"attention_groups": 1, "length_stages": 1}
"""Settings of earlier versions, with the value that every run has now."""
MODEL, CORPUS, ROWS, CODE = "model", "corpus", "rows", "code"
STREAMED = "streamed"
"""Stands for the number of rows of a streamed text: more steps read more of it."""
NAMES = {MODEL: "model (digest)", CORPUS: "text (digest)", CODE: "code of the scheme (digest)", ROWS: "number of rows"}
"""Names of the digests and counts among the settings, for error messages."""


def claim_folder(
    stack: ExitStack,
    folder: Path,
    trained: nn.Module,
    settings: dict[str, Any],
    measured_on: HeldOut | None,
    *,
    resume: bool,
) -> None:
    """Lock ``folder`` for this run until ``stack`` closes; remove a folder that was created here if that fails."""
    state = PartialState(cpu=not torch.accelerator.is_available())
    with folder_created(folder):
        if state.is_main_process:
            stack.enter_context(exclusive_folder(folder))
        check_checkpoint_space(folder, trained)
        if state.num_processes > 1:  # under FSDP, only the main process may have loaded the weights
            settings = settings | {MODEL: broadcast_object_list([settings[MODEL]])[0]}
        with state.main_process_first():
            start_run(folder, settings, resume=resume)
        if state.is_main_process and measured_on is not None:
            measured_on.write(folder)
        elif state.is_main_process:
            (folder / HELD_OUT).unlink(missing_ok=True)


def shared_settings(model: nn.Module, training: Training, rows: Any, *, trains_all: bool) -> dict[str, Any]:
    """Return the settings that a run and its continuation must share.

    Args:
        model: the model before PEFT wraps it.
        training: settings of the run.
        rows: training rows.
        trains_all: whether checkpoints hold all weights. Random initial weights are then not compared, because they
            cannot be drawn again.
    """
    stored = SchemeConfig.of_model(model)
    shared = {name: value for name, value in asdict(training).items() if name not in FREE_SETTINGS}
    loaded = bool(getattr(model.config, "name_or_path", ""))
    schemes = [part for module in model.modules() if isinstance(module, Scheme) for part in module.schemes]
    text = rows.digest if isinstance(rows, PackedRows) else None
    if is_quantised(model):
        shared["quantised"] = True
    if code := digest_of_own({type(scheme) for scheme in schemes}):  # empty if all belong to this package
        shared[CODE] = code
    return shared | {
        "scheme": None if stored is None else stored.to_json(),
        MODEL: sampled_weights_digest(model, values=loaded or not trains_all),
        ROWS: STREAMED if text == "" else count_of(rows), CORPUS: text or None,
    }  # fmt: skip


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Lock ``folder`` inside the block; the system drops the lock when the process ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUse(
                f"{folder} is in use by another run. Wait until that run ends, or choose another folder."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def check_checkpoint_space(folder: Path, trained: nn.Module) -> None:
    """Refuse a run whose checkpoints will not fit."""
    size = sum(FLOAT32 * p.numel() for p in trained.parameters() if p.requires_grad)
    check_disk_space(folder, KEPT_COPIES * (1 + MOMENTS) * size, "Checkpoints")


def save_result(trainer: Trainer, folder: Path, curve: Sequence[LossPoint]) -> None:
    """Save the trained model, gathered from all processes, then the loss curve, which marks the run as finished."""
    is_main, unfinished = trainer.is_world_process_zero(), folder / UNFINISHED
    if is_main:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        trainer.save_model(str(unfinished))
        if is_main:
            (unfinished / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle; run.json holds the same
            write_json(unfinished / CURVE, [point.to_dict() for point in curve])
            move_in(unfinished, folder, companions=(SIDECAR, PARAMETERS), last=(CURVE,))
    finally:
        if is_main:
            shutil.rmtree(unfinished, ignore_errors=True)


def facts_of(training: Training, start: RunStart, curve: Sequence[LossPoint]) -> dict[str, Any]:
    """Return the facts about the training for the model card of an adapter."""
    names = ("method", "rank", "steps", "length", "batch", "accumulate")
    facts: dict[str, Any] = {}
    for name in names:
        value = getattr(training, name)
        facts[name] = f"{value:,}" if isinstance(value, int) else value
    facts["learning_rate"] = f"{start.learning_rate:g}"
    facts |= {f"trained {kind}": f"{count:,}" for kind, count in start.parameters.items()}
    measured = [point.held_out for point in curve if point.held_out]
    if measured:
        for length, loss in measured[-1].items():
            facts[f"held-out loss at {length:,} tokens"] = f"{measured[0][length]:.3f} before, {loss:.3f} after"
    return facts


class WriteManifest(TrainerCallback):
    """Write the manifest of every checkpoint after its last file."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the manifest once `Trainer` has written the other files in all processes."""
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        write_json(folder / MANIFEST, file_sizes(folder))


class RunFinished(Exception):
    """Raised when all steps of a run are done."""


class StopAtLastStep(TrainerCallback):
    """Stop a resumed run that was killed after its last step: `Trainer` would take one more."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop before a step that exceeds the number of steps."""
        if state.global_step >= state.max_steps:
            raise RunFinished


def start_run(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Write ``settings`` to ``folder``. A resumed run must have the same settings, but may have more steps."""
    check_folder(folder, resume=resume)
    if checkpoint_folders(folder):
        check_same_run(folder, settings)
    write_json(folder / RUN, dict(settings))


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with checkpoints unless ``resume`` is true, and a folder with files of another program."""
    if not resume and checkpoint_folders(folder):
        raise CheckpointMismatch(
            f"{folder} holds checkpoints of an earlier run. Continue it with resume=True (--resume), or choose "
            "another folder (--out)."
        )
    check_not_taken(folder, WRITTEN, (RUN,))


def check_same_run(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings than it was started with; only ``steps`` may grow."""
    try:
        stored = read_object(folder / RUN)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(
            f"{folder / RUN} cannot be read: {error}. Restore it, or choose another folder."
        ) from error
    now = json.loads(json.dumps(dict(settings)))
    defaults = json.loads(json.dumps({field.name: field.default for field in fields(Training)[1:]}))
    # A setting that an earlier version did not have has its default there.
    before = {name: default for name, default in defaults.items() if name in now}
    before |= {name: value for name, value in stored.items() if (name, value) not in RETIRED.items()}
    steps, more_steps = before.get("steps"), now.get("steps")
    if isinstance(steps, int) and isinstance(more_steps, int):
        if more_steps < steps:
            raise CheckpointMismatch(
                f"The run in {folder} was started for {steps} steps, and {more_steps} are fewer. Set {steps} steps to "
                "complete it or more to go on, or choose another folder."
            )
        before["steps"] = more_steps
    for name in sorted(before.keys() | now.keys()):
        earlier, current = before.get(name), now.get(name)
        if earlier != current:
            raise CheckpointMismatch(
                f"The run in {folder} was started with another {NAMES.get(name, name)}: {shown(earlier)} then, "
                f"{shown(current)} now. Resume with the same model, text, settings and version, or name another folder."
            )
