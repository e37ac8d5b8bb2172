"""Atomic replacement of several files: all of them are new or all old, whatever interrupts the writing.

The files are written into a hidden folder inside their target. When the last one is written, the files they replace are
moved away, configuration first, and the new ones are moved in, configuration last. An error anywhere moves everything
back; a kill between two renames, or an interrupt of the moving back, leaves a result that does not load, never a
mixture of two, and the old files in the hidden folder.
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
CONFIG_FILES = ("adapter_config.json", "config.json")  # without these nothing loads
SHARED_FILE = "README.md"  # which other programs edit as well
SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
INDEX = re.compile(r"(?P<stem>.+)\.safetensors\.index(?P<variant>\..+)?\.json")


@contextmanager
def staged(folder: str | os.PathLike[str], *, companions: Collection[str] = ()) -> Iterator[Path]:
    """Yield a folder to write a result into; at the end of the block its files replace those of the same names.

    Old weight files that the new ones do not replace are removed: a loader prefers a single old file to new shards.

    Args:
        folder: the target; made if need be, and removed again if it is new and the block fails.
        companions: names of files that are removed where the new result has none of that name.
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
    """Move all files below ``new`` to the same places in ``folder``, or none. No link is replaced; a folder may be one.

    Args:
        new: the finished result, on the same disk; it is removed afterwards.
        folder: the target.
        companions: as in `staged`.
        last: names of files that are moved in after all others.

    Raises:
        FolderUnusable: a link is in the place of a file of the result.
    """

    def rank(file: Path) -> int:
        return 2 + last.index(file.name) if file.name in last else int(file.name in CONFIG_FILES)

    coming = sorted((file.relative_to(new) for file in new.rglob("*") if file.is_file()), key=rank)
    going = [file for file in coming if (folder / file).is_file()] + superseded_files(coming, folder, companions)
    before = Path(tempfile.mkdtemp(prefix=HIDDEN_PREFIX, dir=folder))
    moves = [(folder / file, before / file) for file in sorted(going, key=rank)[::-1]]
    moves += [(new / file, folder / file) for file in coming]
    begun: list[tuple[Path, Path]] = []
    try:
        for file in coming:
            refuse_special_file(folder / file)
            refuse_link(folder / file)
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            begun.append((source, target))  # first, as an interrupt may come right behind the move
            os.replace(source, target)
    except BaseException:
        for source, target in reversed(begun):
            if target.exists() and not source.exists():
                os.replace(target, source)
        shutil.rmtree(before, ignore_errors=True)  # not reached where this is interrupted, too
        raise
    shutil.rmtree(before, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)


def refuse_link(path: Path) -> None:
    """Refuse to replace a link by a file: what it leads to may be on another disk, or belong to something else."""
    if path.is_symlink():
        raise FolderUnusable(
            f"{path} is a link, and a file of the result has that name. Remove the link, or choose another folder."
        )


def superseded_files(coming: Sequence[Path], folder: Path, companions: Collection[str]) -> list[Path]:
    """Files of an earlier result in ``folder`` that belong to it and that no file of the new one replaces."""
    found = []
    for subfolder in {file.parent for file in coming}:
        names = {file.name for file in coming if file.parent == subfolder}
        weights = {weight_file_of(name) for name in names} - {None}
        for old in (folder / subfolder).iterdir() if (folder / subfolder).is_dir() else ():
            if (
                old.name not in names
                and old.is_file()
                and (old.name in companions or weight_file_of(old.name) in weights)
            ):
                found.append(subfolder / old.name)
    return found


def weight_file_of(name: str) -> str | None:
    """``model.safetensors`` for that file, for its shards and for their index; None for what holds no weights."""
    if found := INDEX.fullmatch(name):
        return f"{found['stem']}{found['variant'] or ''}.safetensors"
    return SHARD.sub("", name) if name.endswith(".safetensors") else None
