"""Turn an exception into a two-sentence message and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import NoReturn

from hf_posenc import errors
from hf_posenc.cli import output
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.wording import in_options
from hf_posenc.errors import BadComparison
from hf_posenc.eval.errors import TaskOptionOutOfRange

FAILED, USAGE, PARTLY, CONTRACT, INTERRUPTED = 1, 2, 3, 4, 130


USAGE_ERRORS = (
    BadArgument,
    errors.UnknownScheme,
    errors.CannotImport,
    errors.UnknownOption,
    errors.UnknownCheck,
    errors.OptionOutOfRange,
    errors.LengthContradiction,
    BadComparison,
    TaskOptionOutOfRange,
)


FREE_SPACE = "Free some space and run the same command again; existing files are unchanged."
ACCESS = "Make the folder writable, or choose another."
FOLDER = "Choose another folder."
DISK = {
    errno.ENOSPC: FREE_SPACE, errno.EFBIG: FREE_SPACE, errno.EDQUOT: FREE_SPACE,
    errno.EROFS: ACCESS, errno.EACCES: ACCESS,
    errno.EPERM: ACCESS, errno.ENOTDIR: FOLDER, errno.EISDIR: FOLDER, errno.EEXIST: FOLDER,
    errno.EIO: "Check the disk, or choose another folder.",
    errno.EMFILE: "Close other programs, or allow more open files (ulimit -n).",
}  # fmt: skip
"""Error number of the file system → what to do about it."""
IN_RUST = re.compile(r"\(os error (\d+)\)")


def end(error: BaseException) -> NoReturn:
    """Write what happened and what to do to stderr, and exit with the matching code."""
    if was_interrupted(error):
        sys.exit(INTERRUPTED)
    output.fail(message_of(error))
    sys.exit(USAGE if isinstance(error, USAGE_ERRORS) else FAILED)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt caused an error: transformers reports one during its imports as a missing package."""
    return error is not None and (
        isinstance(error, KeyboardInterrupt) or was_interrupted(error.__cause__) or was_interrupted(error.__context__)
    )


def message_of(error: BaseException) -> str:
    """Say in two sentences what happened and what to do."""
    first = str(error).strip().partition("\n")[0].rstrip(" .:")
    if isinstance(error, errors.PosEncError):
        return in_options(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name or 'A package'} is not installed. pip install 'hf-posenc[all]'"
    if isinstance(error, ImportError):  # raised by transformers for a package that a checkpoint needs
        return f"{first}. Install it, or choose a model that does without."
    if (number := errno_of(error)) in DISK:
        where = getattr(error, "filename", None)
        return f"{os.strerror(number)}{f': {where}' if where else ''}. {DISK[number]}"
    if isinstance(error, OSError):  # raised by transformers and the hub for a model that cannot be loaded
        return f"{first}. Check the name or path; --debug shows the whole error."
    return (
        f"{type(error).__name__}: {first}. If this looks like a bug, report what --debug shows, and what "
        "`hf-posenc env` says."
    )


def errno_of(error: BaseException) -> int:
    """Return the ``errno`` of an error, also where safetensors only has it in its message; 0 where there is none."""
    found = IN_RUST.search(str(error))
    return (int(found[1]) if found else getattr(error, "errno", None)) or 0
