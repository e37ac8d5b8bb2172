"""Validate names and folders from callers."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from hf_posenc.errors import FolderUnusable, ModelNotFound, NoDiskSpace, WrongKind, shown


def checked_name(value: Any, what: str = "A model") -> str:
    """Validate the name or path of a checkpoint, and return it as text.

    Raises:
        WrongKind: the value is neither text nor a path.
        ModelNotFound: the value is empty, or a path that is no folder.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise WrongKind(f"{what} must be a folder or a hub name, got {shown(value)}. Pass one of the two.")
    name = os.fspath(value)
    try:
        folder = bool(name) and Path(name).is_dir()
    except (OSError, ValueError):  # the name is too long, or contains NUL
        folder = False
    path = os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name
    if not folder and (path or not name.strip() or not name.isprintable() or len(name) > 200 or os.path.isfile(name)):
        raise ModelNotFound(f"There is no folder {shown(name)}. Pass a folder with a config.json, or a hub name.")
    return name


def nearest_existing(path: Path) -> Path:
    """The path itself if it exists, else its nearest existing parent."""
    return next(candidate for candidate in (path, *path.absolute().parents) if candidate.exists())


def folder_to_write(value: Any) -> str:
    """Validate a folder to write to, existing or not, and return it as text.

    Raises:
        WrongKind: the value is no path.
        FolderUnusable: the folder or a parent is a file or read-only, or no file system allows the name.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str) or not os.fspath(value):
        raise WrongKind(f"The folder to write to must be a path, got {shown(value)}. Pass one.")
    name = os.fspath(value)
    if not name.isprintable():
        raise FolderUnusable(
            f"{shown(name)} cannot be a folder: it contains unprintable characters. Choose another one."
        )
    try:
        existing = nearest_existing(Path(name))
    except (OSError, ValueError) as error:  # the name is too long, or contains NUL
        raise FolderUnusable(f"{shown(name)} cannot be a folder ({error}). Choose another one.") from error
    if not existing.is_dir():
        raise FolderUnusable(
            f"{shown(name)} cannot be a folder, because {str(existing)!r} is a file. Choose another one."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FolderUnusable(f"Nothing can be written to {str(existing)!r}: it is read-only. Choose another folder.")
    return name


def check_not_taken(folder: Path, written: Iterable[str], marks: Collection[str]) -> None:
    """Refuse to overwrite files of other programs.

    Args:
        folder: existing or not.
        written: names of the files that will be written there.
        marks: names of files that together show that an earlier call wrote the others.

    Raises:
        FolderUnusable: a file would be overwritten, and a mark is missing.
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
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")  # reserved by Windows, with any suffix
LONGEST = 80  # characters, all of them one byte


def slug(name: str) -> str:
    """Unique file name for ``name``, without a suffix: at most 80 bytes, valid on every system."""
    is_safe = PLAIN.fullmatch(name) and not DIGESTED.fullmatch(name) and not RESERVED.fullmatch(name)
    if is_safe and len(name) <= LONGEST and not name.endswith("."):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9._+=-]+", "-", name.lower())[: LONGEST - 16].strip(".-")
    return f"x-{readable}-{digest}" if readable else f"x-{digest}"


def check_disk_space(folder: Path, needed: int, what: str) -> None:
    """Refuse a run whose files will not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NoDiskSpace(
            f"{what} of this run take about {needed:,} bytes, but {free:,} are free on the disk of {folder}. "
            "Free some space, or choose another folder."
        )
