"""Check output paths before the work is done, whose results would be lost at a path that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryFile

from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.core.files.paths import nearest_existing

RESULT_FILES = {
    "finetune": "run.json", "compare": "results.csv", "demo": "report.md", "leaderboard": "leaderboard.json",
    "search": "search.json", "bench": "bench.json", "probe": "probe.json",
}  # fmt: skip
"""Command → a file that each of its folders of results has, and no other's."""
UNFINISHED = {
    "search": "plans", "leaderboard": "cells/*/cells.sqlite", "compare": "cells.sqlite",
}  # fmt: skip
"""Command → what an interrupted run of it leaves, as a pattern; a search leaves cells as compare does, and more."""


def check_output_file(option: str, path: Path) -> None:
    """Check that an output path can be written as a regular file.

    Raises:
        BadArgument: it is a folder, a device or a pipe, or one of its parents is a file or cannot be written to.
    """
    parent = nearest_existing(path.absolute().parent)
    if (path.exists() and not path.is_file()) or not parent.is_dir():
        raise BadArgument(f"{option} {str(path)!r} cannot be a file. Choose another name.")
    check_writable(option, path, parent)


def check_replaces_results(path: Path) -> None:
    """Check that a file of results replaces nothing but earlier ones.

    Raises:
        BadArgument: it is another file.
    """
    check_output_file("--out", path)
    if path.exists() and not is_evaluation(path):
        raise BadArgument(f"--out {str(path)!r} holds something else than results of eval. Choose another name.")


def is_evaluation(path: Path) -> bool:
    """Whether a file is empty, or holds results of an evaluation."""
    try:
        content = json.loads(path.read_bytes() or b'{"rows": [], "lm_eval": {}}')
    except ValueError:
        return False
    return isinstance(content, dict) and {"rows", "lm_eval"} <= content.keys()


def check_output_folder(option: str, path: Path) -> None:
    """Check that an output path can be a folder with new files in it.

    Raises:
        BadArgument: it, or one of its parents, is no folder or cannot be written to.
    """
    folder = nearest_existing(path)
    if not folder.is_dir():
        raise BadArgument(f"{option} {str(path)!r} cannot be a folder. Choose another name.")
    check_writable(option, path, folder)


def check_writable(option: str, path: Path, folder: Path) -> None:
    """Check that files can be made in the folder where an output path will be.

    Raises:
        BadArgument: they cannot.
    """
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadArgument(
            f"{option} {str(path)!r} cannot be written ({error.strerror}). Make the folder writable, or choose another."
        ) from error


def check_results_folder(command: str, path: Path) -> None:
    """Check that an output path can be the folder of a command's results, and holds those of no other command.

    Raises:
        BadArgument: it holds those of another, complete or not, or cannot be a folder with new files in it.
    """
    check_output_folder("--out", path)
    for other, name in RESULT_FILES.items():
        if other != command and (path / name).is_file():
            raise BadArgument(
                f"{str(path)!r} holds results of hf-posenc {other} ({name}), which those of {command} would mix with. "
                "Choose another --out."
            )
    if command in RESULT_FILES and (path / RESULT_FILES[command]).is_file():
        return
    begun = next(((other, found) for other, pattern in UNFINISHED.items() for found in path.glob(pattern)), None)
    if begun is not None and begun[0] != command:
        raise BadArgument(
            f"{str(path)!r} holds an unfinished run of hf-posenc {begun[0]} ({begun[1].relative_to(path)}), which "
            f"results of {command} would mix with. Choose another --out, or resume that run."
        )
