"""Check output paths before the work is done, whose results would be lost at a path that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryFile

from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.core.files.paths import nearest_existing


def check_output_file(option: str, path: Path) -> None:
    """Check that an output path can be written as a regular file.

    Raises:
        BadArgument: it is a folder, a device or a pipe, or its folder cannot be written to.
    """
    if path.exists() and not path.is_file():
        raise BadArgument(f"{option} {str(path)!r} cannot be a file. Choose another name.")
    check_writable(option, path, path.absolute().parent)


def check_output_folder(option: str, path: Path) -> None:
    """Check that an output path can be a folder with new files in it.

    Raises:
        BadArgument: it, or one of its parents, is a file or cannot be written to.
    """
    check_writable(option, path, path)


def check_writable(option: str, path: Path, folder: Path) -> None:
    """Check that files can be made in the folder where an output path will be.

    Raises:
        BadArgument: they cannot.
    """
    try:
        with TemporaryFile(dir=nearest_existing(folder)):
            pass
    except OSError as error:
        raise BadArgument(
            f"{option} {str(path)!r} cannot be written ({error.strerror}). Choose another path."
        ) from error


def check_replaces_results(path: Path) -> None:
    """Check that a file of results replaces nothing but earlier ones: a mistyped name must not cost a text or a model.

    Raises:
        BadArgument: it is another file.
    """
    check_output_file("--out", path)
    if path.exists() and path.stat().st_size and not is_evaluation(path.read_bytes()):
        raise BadArgument(f"--out {str(path)!r} holds something else than results of eval. Choose another name.")


def is_evaluation(content: bytes) -> bool:
    """Whether the content of a file is that of an evaluation's results."""
    try:
        read = json.loads(content)
    except ValueError:
        return False
    return isinstance(read, dict) and {"rows", "lm_eval"} <= read.keys()
