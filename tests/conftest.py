"""One thread, no progress bars, and every exception to the contract printed at the end."""

from __future__ import annotations

import pytest
import torch
from transformers.utils import logging


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # tiny tensors: a second thread only adds noise
    logging.disable_progress_bar()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from hf_posenc.laws import KNOWN_LIMITS

    if KNOWN_LIMITS:
        terminalreporter.section("exceptions to the contract")
    for known in KNOWN_LIMITS:
        terminalreporter.line(f"{known.law} of {known.model}-{known.scheme}: {known.limit:g}, {known.reason}")
