"""Names and folders as callers give them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hf_posenc.errors import (
    FolderUnusable,
    ModelNotFound,
    WrongKind,
    shown,
)


def checked_name(given: Any, what: str = "A model") -> str:
    """A name or path as text.

    Raises:
        WrongKind: it is neither.
        ModelNotFound: it is empty, or a path that is no folder.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise WrongKind(f"{what} is named by a folder or a hub name, got {shown(given)}. Pass one of the two.")
    name = os.fspath(given)
    try:
        folder = bool(name) and Path(name).is_dir()
    except (OSError, ValueError):  # too long, or with a NUL
        folder = False
    path = os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name
    if not folder and (path or not name.strip() or not name.isprintable() or len(name) > 200 or os.path.isfile(name)):
        raise ModelNotFound(f"There is no folder {shown(name)}. Pass a folder with a config.json, or a hub name.")
    return name


def folder_to_write(given: Any) -> str:
    """A folder that files may go to, there or not.

    Raises:
        WrongKind: it is no path.
        FolderUnusable: it is a file, or lies in one.
    """
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str) or not os.fspath(given):
        raise WrongKind(f"A folder to write to is a path, got {shown(given)}. Pass one.")
    name = os.fspath(given)
    if not name.isprintable():
        raise FolderUnusable(
            f"{shown(name)} cannot be a folder: it has characters that no name has. Choose another one."
        )
    try:
        there = next(place for place in (Path(name), *Path(name).absolute().parents) if place.exists())
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise FolderUnusable(f"{shown(name)} cannot be a folder ({error}). Choose another one.") from error
    if not there.is_dir():
        raise FolderUnusable(f"{shown(name)} cannot be a folder, because {str(there)!r} is a file. Choose another one.")
    return name
