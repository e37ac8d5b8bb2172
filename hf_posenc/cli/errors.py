"""From an exception to two sentences and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import NoReturn

from hf_posenc import errors
from hf_posenc.cli import output
from hf_posenc.errors import BadComparison
from hf_posenc.eval.errors import TaskOptionOutOfRange

FAILED, USAGE, PARTLY, CONTRACT, INTERRUPTED = 1, 2, 3, 4, 130


class BadArgument(errors.PosEncError, ValueError):
    """A word on the command line does not name what it should."""


ASKED_FOR_WRONGLY = (
    BadArgument,
    errors.UnknownScheme,
    errors.UnknownOption,
    errors.UnknownTopic,
    errors.OptionOutOfRange,
    errors.LengthContradiction,
    BadComparison,
    TaskOptionOutOfRange,
)


ROOM = "Make room and run the same command again; what was there before is as it was."
ACCESS = "Make the folder writable, or choose another."
FOLDER = "Choose another folder."
DISK = {
    errno.ENOSPC: ROOM, errno.EFBIG: ROOM, errno.EDQUOT: ROOM, errno.EROFS: ACCESS, errno.EACCES: ACCESS,
    errno.EPERM: ACCESS, errno.ENOTDIR: FOLDER, errno.EISDIR: FOLDER, errno.EEXIST: FOLDER,
    errno.EIO: "Check the disk, or choose another folder.",
    errno.EMFILE: "Close other programs, or allow more open files (ulimit -n).",
}  # fmt: skip
"""What to do about an error of a disk or a folder."""
IN_RUST = re.compile(r"\(os error (\d+)\)")


def end(error: BaseException) -> NoReturn:
    """Say what happened and what to do, and end the process with the exit code that belongs to it."""
    if was_interrupted(error):
        sys.exit(INTERRUPTED)
    output.fail(told(error))
    sys.exit(USAGE if isinstance(error, ASKED_FOR_WRONGLY) else FAILED)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt is behind an error: transformers tells one that meets its imports as a missing package."""
    return error is not None and (
        isinstance(error, KeyboardInterrupt) or was_interrupted(error.__cause__) or was_interrupted(error.__context__)
    )


def told(error: BaseException) -> str:
    """Two sentences about an exception."""
    first = str(error).strip().partition("\n")[0].rstrip(" .:")
    if isinstance(error, errors.PosEncError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name or 'A package'} is not installed. pip install 'hf-posenc[all]'"
    if isinstance(error, ImportError):  # what transformers raises for a package that a checkpoint needs
        return f"{first}. Install it, or choose a model that does without."
    if (number := errno_of(error)) in DISK:
        where = getattr(error, "filename", None)
        return f"{os.strerror(number)}{f': {where}' if where else ''}. {DISK[number]}"
    if isinstance(error, OSError):  # what transformers and the hub raise for a model that cannot be had
        return f"{first}. Check the name or path; --debug shows the whole error."
    return (
        f"{type(error).__name__}: {first}. If this looks like a bug, report what --debug shows, and what "
        "`hf-posenc env` says."
    )


def errno_of(error: BaseException) -> int:
    """The system's number of an error, also of one that safetensors has put into words; 0 where there is none."""
    found = IN_RUST.search(str(error))
    return (int(found[1]) if found else getattr(error, "errno", None)) or 0
