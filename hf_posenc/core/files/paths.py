"""Validate names and folders that callers pass."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from hf_posenc.errors import FolderUnusable, ModelNotFound, NoDiskSpace, WrongKind, shown


def checked_name(given: Any, what: str = "A model") -> str:
    """Validate the name or path of a checkpoint, and return it as text.

    Raises:
        WrongKind: it is neither text nor a path.
        ModelNotFound: it is empty, or a path that is no folder.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise WrongKind(f"{what} must be a folder or a hub name, got {shown(given)}. Pass one of the two.")
    name = os.fspath(given)
    try:
        folder = bool(name) and Path(name).is_dir()
    except (OSError, ValueError):  # too long, or with a NUL
        folder = False
    path = os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name
    if not folder and (path or not name.strip() or not name.isprintable() or len(name) > 200 or os.path.isfile(name)):
        raise ModelNotFound(f"There is no folder {shown(name)}. Pass a folder with a config.json, or a hub name.")
    return name


def nearest_existing(path: Path) -> Path:
    """The path itself where it exists, else the nearest of its parents that does."""
    return next(one for one in (path, *path.absolute().parents) if one.exists())


def folder_to_write(given: Any) -> str:
    """Validate a folder to write to, existing or not, and return it as text.

    Raises:
        WrongKind: it is no path.
        FolderUnusable: it or a parent is a file or read-only, or no file system allows the name.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str) or not os.fspath(given):
        raise WrongKind(f"The folder to write to must be a path, got {shown(given)}. Pass one.")
    name = os.fspath(given)
    if not name.isprintable():
        raise FolderUnusable(
            f"{shown(name)} cannot be a folder: it has characters that no name has. Choose another one."
        )
    try:
        existing = nearest_existing(Path(name))
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise FolderUnusable(f"{shown(name)} cannot be a folder ({error}). Choose another one.") from error
    if not existing.is_dir():
        raise FolderUnusable(
            f"{shown(name)} cannot be a folder, because {str(existing)!r} is a file. Choose another one."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FolderUnusable(f"Nothing can be written to {str(existing)!r}: it is read-only. Choose another folder.")
    return name


def check_not_taken(folder: Path, written: Iterable[str], marks: Collection[str]) -> None:
    """Refuse to write over files of somebody else.

    Args:
        folder: existing or not.
        written: names of the files that will be written there.
        marks: names of files that say, together, that an earlier call wrote the others.

    Raises:
        FolderUnusable: there is such a file, and a mark is missing.
    """
    if all((folder / mark).is_file() for mark in marks):
        return
    taken = next((name for name in written if (folder / name).exists()), None)
    if taken is not None:
        raise FolderUnusable(
            f"{str(folder)!r} holds a file {taken} of another program, which would be overwritten. "
            "Choose another folder (--out)."
        )


PLAIN = re.compile(r"[a-z0-9_][a-z0-9._+=-]*")
DIGESTED = re.compile(r".*-[0-9a-f]{12}")
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")  # of Windows, with any ending
LONGEST = 80  # characters, all of them one byte


def slug(name: str) -> str:
    """A file name for ``name`` without an ending: at most 80 bytes, valid on every system, unique."""
    plain = PLAIN.fullmatch(name) and not DIGESTED.fullmatch(name) and not RESERVED.fullmatch(name)
    if plain and len(name) <= LONGEST and not name.endswith("."):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    kept = re.sub(r"[^a-z0-9._+=-]+", "-", name.lower())[: LONGEST - 16].strip(".-")
    return f"x-{kept}-{digest}" if kept else f"x-{digest}"


def check_disk_space(folder: Path, needed: int, what: str) -> None:
    """Refuse a run whose files will not fit."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NoDiskSpace(
            f"{what} of this run take about {needed:,} bytes, but {free:,} are free on the disk of {folder}. "
            "Free some space, or choose another folder."
        )
