"""Resume runs that were killed: find the last complete checkpoint, and check that it belongs to the same run.

`Trainer` writes a checkpoint file by file and resumes from the highest number, complete or not. Here the last file of a
checkpoint is a manifest of all the others, and a folder belongs to one run, with its settings in ``run.json``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.checkpoints.run_checkpoints import MANIFEST as MANIFEST
from hf_posenc.checkpoints.run_checkpoints import RUN, checkpoint_folders, file_sizes
from hf_posenc.checkpoints.run_checkpoints import last_complete as last_complete
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import CheckpointMismatch, RunUnchecked, shown

UNFINISHED = "unfinished"
DEFAULTS = {
    "train_embeddings": True,
    "schedule": "cosine",
    "weight_decay": 0.0,
    "length_stages": 1,
    "attention_groups": 1,
    "target_modules": [],
}
"""Of settings that earlier versions did not have."""
MODEL, CORPUS, ROWS, CODE = "model", "corpus", "rows", "code"
OF_ROWS = (ROWS, CORPUS)
"""Settings that are known once the texts have been read."""
DIGESTS = {MODEL: "model", CORPUS: "text", CODE: "code of the scheme"}
"""Settings that are digests, and what of; those of earlier versions are not known."""


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


def start_run(folder: Path, settings: dict[str, Any], *, resume: bool) -> None:
    """Claim ``folder`` for a run of these settings.

    Raises:
        CheckpointMismatch: it belongs to a run of other settings or of more steps, or to a run that was not asked to be
            resumed.
    """
    settings = json.loads(json.dumps(settings))
    before = settings_of_earlier_run(folder, resume=resume)
    if before is not None:
        check_same_run(folder, unknown_digests(folder, before, settings) | before, settings)
    write_json(folder / RUN, settings)


def check_before_reading(folder: Path, settings: dict[str, Any], *, resume: bool) -> None:
    """Refuse what `start_run` would, as far as it is known before the texts are read, which takes long.

    Args:
        folder: of the run.
        settings: without those of the rows.
        resume: whether to go on with a run in it.

    Raises:
        CheckpointMismatch: as of `start_run`.
    """
    before = settings_of_earlier_run(folder, resume=resume)
    if before is not None:
        settings = json.loads(json.dumps(settings))
        unknown = {name: settings[name] for name in DIGESTS.keys() & settings.keys()}  # warned about by `start_run`
        known = {name: value for name, value in before.items() if name not in OF_ROWS}
        check_same_run(folder, unknown | known, settings)


def settings_of_earlier_run(folder: Path, *, resume: bool) -> dict[str, Any] | None:
    """Settings of the run that ``folder`` has checkpoints of; None where it has none, or does not say them.

    Raises:
        CheckpointMismatch: it has, and was not asked to be resumed; or they cannot be read.
    """
    if not checkpoint_folders(folder):
        return None
    if not resume:
        raise CheckpointMismatch(
            f"{folder} holds checkpoints of an earlier run. Continue it with resume=True (--resume), or choose "
            "another folder (--out)."
        )
    if not (folder / RUN).exists():
        return None
    try:
        return read_object(folder / RUN)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(
            f"{folder / RUN} cannot be read: {error}. Restore it, or choose another folder."
        ) from error


def check_same_run(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings than it was started with, more steps excepted.

    Raises:
        CheckpointMismatch: a setting, the model or the text is another.
    """
    before = {name: DEFAULTS[name] for name in DEFAULTS.keys() & settings.keys()} | dict(before)
    free = {"steps"} if asks_for_more_steps(folder, before, settings) else set()
    for name in sorted((before.keys() | settings.keys()) - free):
        earlier, now = shown(before.get(name)), shown(settings.get(name))
        if before.get(name) == settings.get(name):
            continue
        if name in DIGESTS:
            raise CheckpointMismatch(
                f"The run in {folder} was started with another {DIGESTS[name]}: its digest was {earlier}, and is "
                f"{now}. Pass the {DIGESTS[name]} that the run was started with, or choose another folder."
            )
        raise CheckpointMismatch(
            f"The run in {folder} had {name}={earlier}, this one has {now}. "
            "Resume it with the same settings, or choose another folder."
        )


def unknown_digests(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Digests that the settings of an earlier version lack, as they are now; warned about."""
    unknown = {name: settings[name] for name in DIGESTS if name in settings and name not in before}
    if any(unknown.values()):
        what = " and its ".join(DIGESTS[name] for name, value in unknown.items() if value)
        warnings.warn(
            f"The run in {folder} was started by a version that stored no digest of its {what}, so that they are not "
            "compared. Make sure that they are those it was started with.",
            RunUnchecked,
            stacklevel=4,
        )
    return unknown


def asks_for_more_steps(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a resumed run is asked for more steps than it was started with.

    Raises:
        CheckpointMismatch: fewer were asked for; or more, of a run whose rows grow by shares of all steps.
    """
    earlier, asked = before.get("steps"), settings.get("steps")
    if not isinstance(earlier, int) or not isinstance(asked, int):
        return False
    if asked < earlier:
        raise CheckpointMismatch(
            f"The run in {folder} was started for {earlier} steps, and {asked} were asked for. Ask for {earlier} to "
            "complete it or for more to go on, or choose another folder."
        )
    if asked > earlier and settings.get("length_stages", 1) > 1:
        raise CheckpointMismatch(
            f"The rows of the run in {folder} grew over {earlier} steps, and would be cut short again for part of "
            f"{asked}. Ask for {earlier}, or train its result further in another folder (on the command line: "
            "hf-posenc merge, then finetune with --length-stages 1)."
        )
    return asked > earlier
