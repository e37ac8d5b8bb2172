"""The record of a run's held-out texts (`HELD_OUT`), which is copied to every checkpoint made from the run.

The record names texts in its folder, or beside that folder, by relative paths, so that both can be moved together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.checkpoints.model_name import HELD_OUT, local_name
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.texts.document import PREFIX

TEXTS = "texts"  # key of the record


def measured_run(model: Any) -> Path | None:
    """The folder of the run that a model comes from, if it has a record of held-out texts; else None."""
    if not isinstance(model, (str, os.PathLike)):
        return None
    folder = Path(local_name(model))
    folder = folder.parent if folder.name.startswith(PREFIX_CHECKPOINT_DIR) else folder
    return folder if (folder / HELD_OUT).is_file() else None


def copy_held_out(model: Any, folder: Path) -> None:
    """Copy the record of held-out texts of the run that ``model`` comes from, if there is one, into ``folder``."""
    run = measured_run(model)
    if run is None:
        return
    # A damaged record is not copied. Evaluating the run reports the damage.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        record = read_object(run / HELD_OUT)
        texts = full_paths(record.get(TEXTS) or (), run)
        write_json(folder / HELD_OUT, record | {TEXTS: recorded_names(texts, folder)})


def recorded_names(texts: Iterable[str], folder: Path) -> list[str]:
    """Convert full paths of texts to the names that a record in ``folder`` uses."""
    base = folder.resolve()
    return [
        Path(os.path.relpath(text, base)).as_posix() if base.parent in Path(text).parents else text for text in texts
    ]


def full_paths(texts: Iterable[str], folder: Path) -> list[str]:
    """Full paths of the texts in a record in ``folder``. Names of datasets on the Hub stay unchanged."""
    return [text if text.startswith(PREFIX) else os.path.normpath(folder.resolve() / text) for text in texts]
