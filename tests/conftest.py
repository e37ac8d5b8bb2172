"""One thread, no network, no progress bars, and every known deviation of a check printed at the end."""

from __future__ import annotations

import os

import pytest

# Of processes that tests start, too. A name of the Hub that is looked up without a network takes a minute of retries.
for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402
from transformers.utils import logging  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-cycles", type=int, default=500, help="patches in one process, in tests/soak")
    parser.addoption("--threads", type=int, default=16, help="that patch and run at once, in tests/concurrency")


def pytest_configure(config: pytest.Config) -> None:
    # A failure must be everybody's. `--hypothesis-profile=thorough` draws more, where a test does not say how many.
    settings.register_profile("usual", derandomize=True, deadline=None, max_examples=200)
    settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=2000)
    settings.load_profile(config.getoption("--hypothesis-profile") or "usual")
    torch.set_num_threads(1)  # tiny tensors: a second thread only adds noise
    logging.disable_progress_bar()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from hf_posenc.checks import KNOWN_DEVIATIONS

    if KNOWN_DEVIATIONS:
        terminalreporter.section("known deviations of checks")
    for known in KNOWN_DEVIATIONS:
        terminalreporter.line(f"{known.check} of {known.model}-{known.scheme}: {known.tolerance:g}, {known.reason}")
