"""Turn an exception into a two-sentence message and an exit code, and a warning of this package into a remark."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from hf_posenc import errors
from hf_posenc.cli import output
from hf_posenc.eval import errors as eval_errors

FAILED, USAGE, PARTLY, CONTRACT, INTERRUPTED = 1, 2, 3, 4, 130

WRONG_USE = (
    errors.CannotImport, errors.FolderUnusable, errors.ModelNotFound, errors.OutsideModel, eval_errors.StoreUnreadable,
    eval_errors.UntrustedTask,
)  # fmt: skip
"""Errors about files and models that only another command line can avoid."""
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
IN_RUST = re.compile(r"\(os error (\d+)\)")
CUT_SHORT = re.compile(r"\d+ requested and \d+ written|problem writing element \d+ to file")  # numpy, disk full


def end(error: BaseException) -> NoReturn:
    """Write what happened and what to do to stderr, and exit with the matching code."""
    if was_interrupted(error):
        sys.exit(INTERRUPTED)
    output.fail(message_of(error))
    wrong_value = isinstance(error, errors.PosEncError) and isinstance(error, (ValueError, TypeError))
    sys.exit(USAGE if wrong_value or isinstance(error, WRONG_USE) else FAILED)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt caused the error: during its imports, transformers reports it as a missing package."""
    return error is not None and (
        isinstance(error, KeyboardInterrupt) or was_interrupted(error.__cause__) or was_interrupted(error.__context__)
    )


def message_of(error: BaseException) -> str:
    """Say in two sentences what happened and what to do."""
    if isinstance(error, errors.PosEncError):
        return str(error)
    first = errors.first_line(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name or 'A package'} is not installed. pip install 'hf-posenc[all]'"
    if isinstance(error, ImportError):  # transformers, for a package that a checkpoint needs
        return f"{first}. Install it, or choose another model."
    if (number := errno_of(error)) in DISK_FULL:
        return f"{os.strerror(number)}. Free some space and run the same command again; existing files are unchanged."
    if isinstance(error, OSError):  # from the file system, or from transformers and the hub
        where = f": {error.filename}" if error.filename else ""
        return f"{first}{where}. Check the name or path; --debug shows the whole error."
    return (
        f"{type(error).__name__}: {first}. If this looks like a bug, report the output of --debug and of "
        "`hf-posenc env`."
    )


def errno_of(error: BaseException) -> int:
    """Return the ``errno`` of an error, parsed from the text of errors of safetensors and numpy; 0 if there is none."""
    if CUT_SHORT.match(str(error)):
        return errno.ENOSPC
    match = IN_RUST.search(str(error))
    return (int(match[1]) if match else getattr(error, "errno", None)) or 0


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings of this package on stderr as remarks, without the line of code that raised them."""
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category.__module__.startswith("hf_posenc"):
                output.note(f"Warning: {message}")
            else:
                show_other(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield
