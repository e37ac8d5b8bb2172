"""Hide what lm-eval writes to the screen, for which it has no switch."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def suppress_output(quiet: bool) -> Iterator[None]:
    """Hide lm-eval's progress bars, its advice about live models, and what its generators print."""
    if not quiet:
        yield
        return
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
