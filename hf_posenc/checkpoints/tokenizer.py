"""The tokenizer that belongs to a checkpoint: loaded, and copied to where the checkpoint goes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_posenc.core.files.hf_errors import explained_errors
from hf_posenc.errors import CheckpointMismatch, MissingPackage, ModelNotFound
from hf_posenc.patching.stored.config_guard import GUARDED_TYPE


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
    """Hide what transformers says of the guarded configuration of a patched checkpoint when it loads the tokenizer."""
    logger = logging.getLogger("transformers.configuration_utils")
    logger.addFilter(says_something_else)
    try:
        yield
    finally:
        logger.removeFilter(says_something_else)


def says_something_else(record: logging.LogRecord) -> bool:
    """Whether a log record is another one."""
    return GUARDED_TYPE not in record.getMessage()
