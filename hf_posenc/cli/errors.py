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
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.eval import errors as eval_errors

FAILED, USAGE, PARTLY, CONTRACT, INTERRUPTED = 1, 2, 3, 4, 130

USAGE_ERRORS = (
    BadArgument,
    errors.AlreadyPatched,
    errors.AlreadyScaled,
    errors.BadComparison,
    errors.CannotCombine,
    errors.CannotImport,
    errors.CheckpointMismatch,
    errors.FolderUnusable,
    errors.LengthContradiction,
    errors.ModelNotFound,
    errors.NotPatched,
    errors.OptionOutOfRange,
    errors.PeftAdapterMismatch,
    errors.SchemeNotDefined,
    errors.TrainingImpossible,
    errors.UnknownCheck,
    errors.UnknownOption,
    errors.UnknownScheme,
    errors.UnknownStarter,
    errors.UnreadableDocuments,
    eval_errors.LengthTooShort,
    eval_errors.NotMeasurable,
    eval_errors.StoreUnreadable,
    eval_errors.TaskOptionOutOfRange,
    eval_errors.TextTooShort,
    eval_errors.UntrustedTask,
)
"""An option, a scheme or a file is wrong: another command line is needed. Every other error is a failure."""
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
IN_RUST = re.compile(r"\(os error (\d+)\)")
CUT_SHORT = re.compile(r"\d+ requested and \d+ written|problem writing element \d+ to file")  # numpy's, of a full disk


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
    if isinstance(error, errors.PosEncError):
        return str(error)
    first = errors.first_line(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name or 'A package'} is not installed. pip install 'hf-posenc[all]'"
    if isinstance(error, ImportError):  # raised by transformers for a package that a checkpoint needs
        return f"{first}. Install it, or choose a model that does without."
    if (number := errno_of(error)) in DISK_FULL:
        return f"{os.strerror(number)}. Free some space and run the same command again; existing files are unchanged."
    if isinstance(error, OSError):  # of the file system; or of transformers and the hub, for a model
        where = f": {error.filename}" if error.filename else ""
        return f"{first}{where}. Check the name or path; --debug shows the whole error."
    return (
        f"{type(error).__name__}: {first}. If this looks like a bug, report what --debug shows, and what "
        "`hf-posenc env` says."
    )


def errno_of(error: BaseException) -> int:
    """Return the ``errno`` of an error, also where safetensors or numpy say it in words; 0 where there is none."""
    if CUT_SHORT.match(str(error)):
        return errno.ENOSPC
    found = IN_RUST.search(str(error))
    return (int(found[1]) if found else getattr(error, "errno", None)) or 0


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings of this package on stderr as remarks, without the line of code that raised them."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category.__module__.startswith("hf_posenc"):
                output.note(f"Warning: {message}")
            else:
                before(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield
