"""Where the texts are that a run held out, whose record `HELD_OUT` goes with every checkpoint that is made of the run.

A text in the folder of a record, or beside that folder, is named relative to it, so that both can be moved together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
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
    """The folder of the run that a model is of, or was made of, if that has a record of what was held out."""
    if not isinstance(model, (str, os.PathLike)):
        return None
    folder = Path(local_name(model))
    folder = folder.parent if folder.name.startswith(PREFIX_CHECKPOINT_DIR) else folder
    return folder if (folder / HELD_OUT).is_file() else None


def copy_held_out(model: Any, folder: Path) -> None:
    """Write the record of the run that a model is of, if there is one, into the folder of what was made of it."""
    run = measured_run(model)
    if run is None:
        return
    # A damaged record is left behind: measuring the run says what is wrong.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        record = read_object(run / HELD_OUT)
        write_json(folder / HELD_OUT, record | {TEXTS: names_for(found_from(record.get(TEXTS) or (), run), folder)})


def names_for(texts: Iterable[str], folder: Path) -> list[str]:
    """Full names of texts as a record in ``folder`` has them."""
    here = folder.resolve()
    return [
        Path(os.path.relpath(text, here)).as_posix() if here.parent in Path(text).parents else text for text in texts
    ]


def found_from(texts: Iterable[str], folder: Path) -> list[str]:
    """Full names of the texts that a record in ``folder`` has; those of datasets on the hub are left as they are."""
    return [text if text.startswith(PREFIX) else found_text(text, folder.resolve()) for text in texts]


def found_text(name: str, folder: Path) -> str:
    """The full name of a text; one that is gone is looked for by its last part, where the record is and beside it."""
    stated = os.path.normpath(folder / name)
    places: Iterator[Path] = (place / Path(name).name for place in (folder, folder.parent, Path.cwd()))
    return stated if os.path.exists(stated) else next((str(one) for one in places if one.exists()), stated)
