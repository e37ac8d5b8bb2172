"""``--debug`` and ``--import FILE``, which may stand anywhere in a command line."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.core.plugins import imported_files
from hf_posenc.errors import PosEncError

DEBUG = "--debug"
IMPORT = "--import"


def separated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command line into the words of the command and the Python files to import; drop ``--debug``."""
    command, files, remaining = [], [], iter(words)
    for word in remaining:
        if word == IMPORT:
            file = next(remaining, None)
            if file is None:
                raise BadArgument(f"{IMPORT} takes a Python file. Write for example {IMPORT} my_scheme.py.")
            files.append(file)
        elif word.startswith(f"{IMPORT}="):
            files.append(word.removeprefix(f"{IMPORT}="))
        elif word != DEBUG:
            command.append(word)
    return command, files


def program() -> list[str]:
    """Return the first words of a follow-up command: the program, and the files this one imported."""
    return ["hf-posenc", *(word for file in imported_files() for word in (IMPORT, file))]


class BadArgument(PosEncError, ValueError):
    """An argument on the command line is invalid."""
