"""Resume runs that were killed: find the last complete checkpoint, and check that it belongs to the same run.

`Trainer` writes a checkpoint file by file and resumes from the highest number, complete or not. Here the last file of a
checkpoint is a manifest of all the others, and a folder belongs to one run, with its settings in ``run.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.checkpoints.model_name import MANIFEST as MANIFEST
from hf_posenc.checkpoints.model_name import RUN, checkpoint_folders, file_sizes
from hf_posenc.checkpoints.model_name import last_complete as last_complete
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import CheckpointMismatch, shown
from hf_posenc.training.config import Training

UNFINISHED = "unfinished"
MODEL, CORPUS, ROWS, CODE = "model", "corpus", "rows", "code"
DIGESTS = {MODEL: "model", CORPUS: "text", CODE: "code of the scheme"}
"""Settings that are digests, and what of."""

RETIRED = {"length_stages": 1}
"""Settings of earlier versions that this one has no more, and the only value that a run may have had to be resumed."""


class WriteManifest(TrainerCallback):
    """Writes the manifest of every checkpoint, after its last file."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """`Trainer` has written everything else, in every process."""
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        write_json(folder / MANIFEST, file_sizes(folder))


class RunFinished(Exception):
    """All steps of a run are done."""


class StopAtLastStep(TrainerCallback):
    """Stop a resumed run that was killed after its last step: `Trainer` would take one more."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before every step.

        Raises:
            RunFinished: there is no step left.
        """
        if state.global_step >= state.max_steps:
            raise RunFinished


def start_run(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Claim ``folder`` for a run of these settings. A run that is resumed may have more steps than before.

    Raises:
        CheckpointMismatch: ``folder`` holds a run that was not asked to be resumed, or one with another setting, model
            or text, or more steps.
    """
    check_folder(folder, resume=resume)
    if checkpoint_folders(folder):
        check_same_run(folder, settings)
    write_json(folder / RUN, dict(settings))


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with checkpoints of a run that was not asked to be resumed.

    Raises:
        CheckpointMismatch: The folder holds some.
    """
    if not resume and checkpoint_folders(folder):
        raise CheckpointMismatch(
            f"{folder} holds checkpoints of an earlier run. Continue it with resume=True (--resume), or choose "
            "another folder (--out)."
        )


def check_same_run(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings than it was started with, but for more steps.

    Raises:
        CheckpointMismatch: one differs, or they cannot be read.
    """
    if not (folder / RUN).exists():
        return
    try:
        before = read_object(folder / RUN)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(
            f"{folder / RUN} cannot be read: {error}. Restore it, or choose another folder."
        ) from error
    now = RETIRED | json.loads(json.dumps(dict(settings)))
    # What an earlier version did not have is what it does by default.
    defaults = json.loads(json.dumps({field.name: field.default for field in fields(Training)[1:]}))
    before = RETIRED | {name: defaults[name] for name in defaults.keys() & now.keys()} | before
    free = {"steps"} if asks_for_more_steps(folder, before, now) else set()
    for name in sorted((before.keys() | now.keys()) - free):
        earlier, asked = shown(before.get(name)), shown(now.get(name))
        if before.get(name) == now.get(name):
            continue
        if name in DIGESTS:
            raise CheckpointMismatch(
                f"The run in {folder} was started with another {DIGESTS[name]}: its digest was {earlier}, and is "
                f"{asked}. Pass the {DIGESTS[name]} that the run was started with, or choose another folder."
            )
        raise CheckpointMismatch(
            f"The run in {folder} had {name}={earlier}, this one has {asked}. "
            "Resume it with the same settings, or choose another folder."
        )


def asks_for_more_steps(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a resumed run is asked for more steps than it was started with.

    Raises:
        CheckpointMismatch: fewer were asked for.
    """
    earlier, asked = before.get("steps"), settings.get("steps")
    if not isinstance(earlier, int) or not isinstance(asked, int):
        return False
    if asked < earlier:
        raise CheckpointMismatch(
            f"The run in {folder} was started for {earlier} steps, and {asked} were asked for. Ask for {earlier} to "
            "complete it or for more to go on, or choose another folder."
        )
    return asked > earlier
