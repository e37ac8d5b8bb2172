"""The checkpoints inside the folder of a fine-tuning run: which there are, and which are complete.

`hf_posenc.training.resume` writes them; the last file of each is a manifest of all the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import logging
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.core.files.json_file import read_object

RUN, MANIFEST = "run.json", "complete.json"
logger = logging.get_logger(__name__)


def last_complete(folder: Path) -> str | None:
    """The newest checkpoint whose files all match its manifest; None where there is none."""
    for checkpoint in reversed(checkpoint_folders(folder)):
        try:
            listed: Any = read_object(checkpoint / MANIFEST)
        except (OSError, ValueError):
            listed = None
        if listed is not None and listed == file_sizes(checkpoint):
            return str(checkpoint)
        logger.warning(f"{checkpoint} is not complete and is skipped. Delete it to save space.")
    return None


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first."""
    found = [p for p in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if p.name.rpartition("-")[2].isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint folder was written after, from its name."""
    return int(checkpoint.name.rpartition("-")[2])


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file in a checkpoint, by name, the manifest's own left out."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}
