"""The tokenizer that belongs to a checkpoint: loaded, and copied to where the checkpoint goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, MissingPackage, ModelNotFound


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model, without remote code.

    Raises:
        PosEncError: the tokenizer cannot be found or read.
    """
    from transformers import AutoTokenizer

    with explained_errors(name), without_remark_on_guard():
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def copy_tokenizer(name: str, folder: Path) -> bool:
    """Save the tokenizer of a model into ``folder``, and say whether it has one."""
    try:
        tokenizer = load_tokenizer(name)
    except (CheckpointMismatch, MissingPackage, ModelNotFound):
        return False
    tokenizer.save_pretrained(folder)
    return True


@contextmanager
def without_remark_on_guard() -> Iterator[None]:
    """Hide what transformers says of the guarded configuration of a patched checkpoint, which it reads as well."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
