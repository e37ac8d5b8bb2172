"""Hide what lm-eval writes to the screen, for which it has no switch."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def suppress_output(quiet: bool) -> Iterator[None]:
    """Hide lm-eval's progress bars, its advice about live models, and what its generators print.

    Warnings of this package are given after the block; there they would be hidden with the rest.
    """
    if not quiet:
        yield
        return
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            redirect_stderr(io.StringIO()),
            redirect_stdout(io.StringIO()),
        ):
            yield
    finally:
        logger.setLevel(level)
    for warning in caught:
        if warning.category.__module__.startswith("hf_posenc."):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
