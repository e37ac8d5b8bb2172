"""``--debug`` and ``--import FILE``, which may stand at any place of a command line."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.core.plugins import imported_files
from hf_posenc.errors import PosEncError

DEBUG = "--debug"
IMPORT = "--import"


def separated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command without both options, and the Python files to import."""
    left, files, rest = [], [], iter(words)
    for word in rest:
        if word == IMPORT:
            file = next(rest, None)
            if file is None:
                raise BadArgument(f"{IMPORT} takes a Python file. Write for example {IMPORT} my_scheme.py.")
            files.append(file)
        elif word.startswith(f"{IMPORT}="):
            files.append(word.removeprefix(f"{IMPORT}="))
        elif word != DEBUG:
            left.append(word)
    return left, files


def program() -> list[str]:
    """The first words of a command that goes on from this one."""
    return ["hf-posenc", *(word for file in imported_files() for word in (IMPORT, file))]


class BadArgument(PosEncError, ValueError):
    """An argument on the command line is invalid."""
