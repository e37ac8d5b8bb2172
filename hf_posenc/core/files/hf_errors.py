"""Convert errors of transformers and safetensors to errors of this package, which say what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import (
    CheckpointMismatch,
    MissingPackage,
    ModelNotFound,
    NoMemory,
    PosEncError,
    UnknownOption,
    nearest,
    shown,
)

# Errors are recognized by words and class names: importing their classes takes a second.
UNEXPECTED = re.compile(r"unexpected keyword argument '([^']*)'")
NOT_FOUND_ERRORS = ("OfflineModeIsEnabled", "LocalEntryNotFoundError", "RepositoryNotFoundError")
NO_NAME_OF_THE_HUB = "HFValidationError"
NO_MEMORY = "can't allocate memory"  # in the message of torch's RuntimeError where CPU memory runs out
NO_GPU_MEMORY = "OutOfMemoryError"
REASONS = {
    "ignore_mismatched_sizes": "a weight has another shape than its configuration asks for",
    "instantiate the backend tokenizer": "it has no tokenizer that the installed packages read",
    "no file named model.safetensors": "it has no model.safetensors, and pickled weights (.bin) are not opened",
}
"""Words in unclear messages of transformers → their meaning."""


@contextmanager
def explained_errors(name: str, options: Iterable[str] = (), *, part: str = "checkpoint") -> Iterator[None]:
    """Convert errors of transformers and safetensors while the checkpoint ``name`` is loaded.

    Args:
        name: name of the checkpoint.
        options: valid keywords, to suggest one for an unknown keyword.
        part: what is loaded, for the message.

    Raises:
        ModelNotFound: the checkpoint is not found, or cannot be downloaded without a network.
        UnknownOption: neither the loader nor a scheme has this keyword.
        CheckpointMismatch: its files are damaged, or cannot be loaded.
        MissingPackage: its quantisation or backend needs a package that is not installed.
        NoMemory: it is larger than the machine's memory.
    """
    try:
        with explained_imports():
            yield
    except PosEncError:
        raise
    except Exception as error:
        raise explanation(error, name, options, part) from error


def explanation(error: Exception, name: str, options: Iterable[str] = (), part: str = "checkpoint") -> PosEncError:
    """Error of this package that says why a checkpoint could not be loaded; arguments as in `explained_errors`."""
    reason = reason_of(error)
    if isinstance(error, ImportError):
        return MissingPackage(
            f"The model {shown(name)} needs a package: {reason}. Install it, or choose another model."
        )
    if is_out_of_memory(error):
        return NoMemory(
            f"The checkpoint {shown(name)} does not fit in memory: {reason or 'no details were given'}. "
            "Check the sizes in its configuration, or load a smaller one."
        )
    keyword = UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if keyword is not None:
        return UnknownOption(
            f"{keyword[1]!r} is no argument of loading and no option of a scheme.{nearest(keyword[1], options)} "
            "Leave it out; `hf-posenc info NAME` lists the options of a scheme."
        )
    if type(error).__name__ == NO_NAME_OF_THE_HUB:
        return ModelNotFound(
            f"There is no folder {shown(name)}, and no model of the Hub can have this name. Check the path."
        )
    if type(error).__name__ in NOT_FOUND_ERRORS or (isinstance(error, OSError) and not os.path.isdir(name)):
        return ModelNotFound(
            f"The model {shown(name)} is not available: {reason}. "
            f"Check the name; while there is a network, `hf download {name}` fetches it."
        )
    return CheckpointMismatch(
        f"The {part} {shown(name)} cannot be loaded: {type(error).__name__}: {reason}. "
        "Copy or save it again, or check the arguments of this call."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that main memory or GPU memory is full."""
    return isinstance(error, MemoryError) or type(error).__name__ == NO_GPU_MEMORY or NO_MEMORY in str(error)


def reason_of(error: Exception) -> str:
    """First line of an error's message, with the second line if the first ends in a colon; or its known meaning."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    if (meaning := next((meaning for words, meaning in REASONS.items() if words in lines[0]), None)) is not None:
        return meaning
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(" .:")[:300]
