"""Raise errors of transformers and safetensors as ours: what happened, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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

UNEXPECTED = re.compile(r"unexpected keyword argument '([^']*)'")


NOT_FOUND_ERRORS = ("OfflineModeIsEnabled", "LocalEntryNotFoundError", "RepositoryNotFoundError")


NO_NAME_OF_THE_HUB = "HFValidationError"


NO_MEMORY = "can't allocate memory"  # of PyTorch


SHAPE_MISMATCH = "ignore_mismatched_sizes"  # in what transformers says of one


@contextmanager
def explained_errors(name: str, options: Iterable[str] = ()) -> Iterator[None]:
    """Raise errors of transformers and safetensors as ours while ``name`` is loaded.

    Args:
        name: of the checkpoint.
        options: keywords that a caller may have meant by an unknown one.

    Raises:
        ModelNotFound: it cannot be found, or not downloaded without a network.
        UnknownOption: a keyword that nothing takes.
        CheckpointMismatch: its files are damaged, or cannot be loaded.
        MissingPackage: its quantisation or backend needs a package that is not installed.
        NoMemory: it is larger than the machine's memory.
    """
    try:
        yield
    except PosEncError:
        raise
    except ImportError as error:
        raise MissingPackage(
            f"The model {shown(name)} needs a package: {first_line(error)}. Install it, or choose a model without."
        ) from error
    except Exception as error:
        first = first_line(error)
        if isinstance(error, MemoryError) or NO_MEMORY in str(error):
            raise NoMemory(
                f"The checkpoint {shown(name)} does not fit in memory: {first or 'no details were given'}. "
                "Check the sizes in its configuration, or load a smaller one."
            ) from error
        wrong = UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
        if wrong is not None:
            raise UnknownOption(
                f"{wrong[1]!r} is no argument of loading and no option of a scheme.{nearest(wrong[1], options)} "
                "Leave it out; `hf-posenc info NAME` lists the options of a scheme."
            ) from error
        if type(error).__name__ == NO_NAME_OF_THE_HUB:
            raise ModelNotFound(
                f"There is no folder {shown(name)}, and no model of the Hub can have this name. Check the path."
            ) from error
        if type(error).__name__ in NOT_FOUND_ERRORS or (isinstance(error, OSError) and not os.path.isdir(name)):
            raise ModelNotFound(
                f"The model {shown(name)} is not available: {first}. "
                f"Check the name; while there is a network, `hf download {name}` fetches it."
            ) from error
        raise CheckpointMismatch(
            f"The checkpoint {shown(name)} cannot be loaded: {type(error).__name__}: {first}. "
            "Copy or save it again, or check the arguments of this call."
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message, with the second where the first ends in a colon."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    if SHAPE_MISMATCH in lines[0]:
        return "a weight has another shape than its configuration asks for"
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(" .:")[:300]
