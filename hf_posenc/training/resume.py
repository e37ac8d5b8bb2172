"""Resume runs that were killed: find the last complete checkpoint, and check that it belongs to the same run.

`Trainer` writes a checkpoint file by file and resumes from the highest number, complete or not. Here the last file of a
checkpoint is a manifest of all the others, and a folder belongs to one run, with its settings in ``run.json``.
"""

from __future__ import annotations

import json
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
from hf_posenc.errors import CheckpointMismatch, shown

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
    if checkpoint_folders(folder) and not resume:
        raise CheckpointMismatch(
            f"{folder} holds checkpoints of an earlier run. Continue it with resume=True (on the command line "
            "--resume), or choose another folder."
        )
    if checkpoint_folders(folder) and (folder / RUN).exists():
        try:
            before = read_object(folder / RUN)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(
                f"{folder / RUN} cannot be read: {error}. Restore it, or choose another folder."
            ) from error
        before = {name: DEFAULTS[name] for name in DEFAULTS.keys() & settings.keys()} | before
        longer = may_go_on(folder, before, settings)
        for name in sorted((before.keys() | settings.keys()) - ({"steps"} if longer else set())):
            if before.get(name) != settings.get(name):
                difference = f"{name}={shown(before.get(name))}, this one has {shown(settings.get(name))}"
                raise CheckpointMismatch(
                    f"The run in {folder} had {difference}. Resume it with the same settings, or choose another folder."
                )
    write_json(folder / RUN, settings)


def may_go_on(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
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
