"""Configuration of the tests: one thread per process, no network, and a list of known deviations at the end.

``pytest`` runs the quick tests, ``pytest --runslow`` also the slow ones except the exhaustive matrix, which has the
marker ``full``: ``pytest --runslow -m full``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from types import ModuleType

import pytest

# Processes that tests start inherit these. Without a network, a look-up of a name on the Hub retries for a minute.
for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402
from transformers.utils import logging  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    # Examples are derandomized, so failures repeat everywhere. `--hypothesis-profile=thorough` draws more of them.
    settings.register_profile("usual", derandomize=True, deadline=None, max_examples=200)
    settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=2000)
    settings.load_profile(config.getoption("--hypothesis-profile") or "usual")
    torch.set_num_threads(1)  # tiny tensors: a second thread only adds noise
    logging.disable_progress_bar()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch for each test, so its random numbers do not depend on earlier tests or the process."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests without ``--runslow``."""
    if not config.getoption("--runslow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_set_aside() -> None:
    """Freeze existing objects: garbage collection among millions of them takes seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The adapter for GPT-NeoX in the examples."""
    from .example_modules import example_module

    with example_module("third_party_adapter") as module:
        yield module


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from hf_posenc.checks import KNOWN_DEVIATIONS

    if KNOWN_DEVIATIONS:
        terminalreporter.section("known deviations of checks")
    for known in KNOWN_DEVIATIONS:
        terminalreporter.line(f"{known.check} of {known.model}-{known.scheme}: {known.tolerance:g}, {known.reason}")
