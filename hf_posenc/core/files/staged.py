"""Atomic replacement of several files: all of them are new or all are old, even if writing is interrupted.

The files are written into a hidden folder inside their target. Then the files they replace are moved away,
configuration first, and the new files are moved in, configuration last. An error moves everything back. A kill between
two renames, or an interrupt while files are moved back, never leaves a mixture of two results. It leaves a result that
does not load, and the old files in the hidden folder.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hf_posenc.core.files.atomic import folder_created, refuse_special_file
from hf_posenc.errors import FolderUnusable

HIDDEN_PREFIX = ".unfinished-"
CONFIG_FILES = ("adapter_config.json", "config.json")  # no result loads without them
SHARED_FILE = "README.md"  # other programs edit it, too
SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
INDEX = re.compile(r"(?P<stem>.+)\.safetensors\.index(?P<variant>\..+)?\.json")


@contextmanager
def staged(folder: str | os.PathLike[str], *, companions: Collection[str] = ()) -> Iterator[Path]:
    """Yield a folder to write a result into. After the block its files replace the target's files of the same names.

    Old weight files that the result does not replace are removed: a loader prefers a single old file to new shards.

    Args:
        folder: the target; it is created if necessary, and removed again if it is new and the block fails.
        companions: names of files that are removed if the result does not have them.
    """
    folder = Path(folder)
    with folder_created(folder):
        work = Path(tempfile.mkdtemp(prefix=HIDDEN_PREFIX, dir=folder))
        try:
            new = work / "new" / folder.absolute().name  # a model card contains the name of its folder
            new.mkdir(parents=True)
            if (folder / SHARED_FILE).is_file():
                shutil.copy2(folder / SHARED_FILE, new / SHARED_FILE)
            yield new
            move_in(new, folder, companions=companions)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def move_in(new: Path, folder: Path, *, companions: Collection[str] = (), last: Sequence[str] = ()) -> None:
    """Move all files below ``new`` to the same places in ``folder``, or none. Folders may be links; files may not.

    Args:
        new: the finished result, on the same disk; it is removed afterwards.
        folder: the target.
        companions: as in `staged`.
        last: names of files that are moved in after all others.

    Raises:
        FolderUnusable: the target has a link in place of a file of the result.
    """

    def rank(file: Path) -> int:
        return 2 + last.index(file.name) if file.name in last else int(file.name in CONFIG_FILES)

    new_files = sorted((file.relative_to(new) for file in new.rglob("*") if file.is_file()), key=rank)
    old_files = [file for file in new_files if (folder / file).is_file()]
    old_files += superseded_files(new_files, folder, companions)
    backup = Path(tempfile.mkdtemp(prefix=HIDDEN_PREFIX, dir=folder))
    moves = [(folder / file, backup / file) for file in sorted(old_files, key=rank)[::-1]]
    moves += [(new / file, folder / file) for file in new_files]
    begun: list[tuple[Path, Path]] = []
    try:
        for file in new_files:
            refuse_special_file(folder / file)
            if (folder / file).is_symlink():  # its target may be on another disk, or belong to another program
                raise FolderUnusable(
                    f"{folder / file} is a link, and a file of the result has that name. Remove the link, or choose "
                    "another folder."
                )
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            begun.append((source, target))  # first: an interrupt may come right after the move
            os.replace(source, target)
    except BaseException:
        for source, target in reversed(begun):
            if target.exists() and not source.exists():
                os.replace(target, source)
        shutil.rmtree(backup, ignore_errors=True)  # not reached if moving back is interrupted
        raise
    shutil.rmtree(backup, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)


def superseded_files(new_files: Sequence[Path], folder: Path, companions: Collection[str]) -> list[Path]:
    """Weight files and companions of an earlier result in ``folder`` that no new file replaces."""
    superseded = []
    for subfolder in {file.parent for file in new_files}:
        if not (folder / subfolder).is_dir():
            continue
        names = {file.name for file in new_files if file.parent == subfolder}
        weights = {weight_file_of(name) for name in names} - {None}
        others = [old for old in (folder / subfolder).iterdir() if old.is_file() and old.name not in names]
        superseded += [
            subfolder / old.name for old in others if old.name in companions or weight_file_of(old.name) in weights
        ]
    return superseded


def weight_file_of(name: str) -> str | None:
    """``model.safetensors`` for that file, for its shards and for their index; None for a file without weights."""
    if match := INDEX.fullmatch(name):
        return f"{match['stem']}{match['variant'] or ''}.safetensors"
    return SHARD.sub("", name) if name.endswith(".safetensors") else None
