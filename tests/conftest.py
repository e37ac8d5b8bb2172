"""How the tests run: one thread a process, no network, a representative default suite, exceptions printed at the end.

``pytest`` runs the default suite: every room, every scheme on every model, and of each parametrised test a spread of
its cases. ``pytest --whole`` runs every case, ``pytest --rest`` those that the default suite leaves out, and
``pytest --whole -m ''`` adds the exhaustive matrix marked ``full``. Naming files or tests, and nothing else, runs every
case of them, in one process. Where a folder is named, alone or beside files, the default suite of all that is named
runs, on all cores; ``--whole`` runs every case there, too. ``--minutes 15`` skips what has not begun by then, and the
summary counts it.
"""

from __future__ import annotations

import gc
import os
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

# Of processes that tests start, too. A name of the Hub that is looked up without a network takes a minute of retries.
for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402
from transformers.utils import logging  # noqa: E402

CASES = 7  # of one parametrised test that the default suite runs
LONGEST = (
    *("docs/test_site.py", "checks/test_every_check.py", "cli/test_third_party.py", "checks/test_check_scheme.py"),
    *("cli/test_next_commands.py", "docs/test_how_to.py", "examples/test_examples_llama.py", "docs/test_notebooks.py"),
    *("faults/test_every_call.py", "faults/test_real.py", "eval/test_processes.py", "eval/test_commands.py"),
)
"""Files that take a minute or more, begun first: a process that came to one of them last would work on alone."""
BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run every case of every test, also the slow ones")
    parser.addoption("--rest", action="store_true", help="run what the default suite leaves out")
    parser.addoption("--minutes", type=float, default=float("inf"), help="skip the tests that have not begun by then")
    parser.addoption("--threads", type=int, default=16, help="that patch and run at once, in tests/concurrency")


def pytest_configure(config: pytest.Config) -> None:
    # A failure must be everybody's. `--hypothesis-profile=thorough` draws more, where a test does not say how many.
    settings.register_profile("usual", derandomize=True, deadline=None, max_examples=200)
    settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=2000)
    settings.load_profile(config.getoption("--hypothesis-profile") or "usual")
    torch.set_num_threads(1)  # tiny tensors: a second thread only adds noise
    logging.disable_progress_bar()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch for each test: what one draws depends neither on the tests before it nor on the process it runs in."""
    minutes = item.config.getoption("--minutes")
    if time.monotonic() - BEGUN > 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes of --minutes are over")
    torch.manual_seed(0)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """All cores for a suite; none besides this process for files that are named, which then answer sooner."""
    return 0 if names_files(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the suite that was asked for does not run, and begin with the files that take longest."""
    if not (config.getoption("--whole") or names_files(config)):
        chosen = default_suite(items)
        if config.getoption("--rest"):
            chosen = set(items) - chosen
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (place_of(item.path), -tests[item.path]))


def place_of(file: Path) -> int:
    """When a file is begun: the longest in their order, then all others at once."""
    name = file.relative_to(Path(__file__).parent).as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_set_aside() -> None:
    """Set aside the tests and what earlier ones left: to collect garbage among millions of objects takes seconds."""
    gc.collect()
    gc.freeze()


def default_suite(items: list[pytest.Item]) -> set[pytest.Item]:
    """What runs by default: of each test the cases marked ``always``, and `CASES` others that are not ``slow``.

    The others are those with the smallest checksums of their names: the same on every machine and in every process, and
    spread over all parameters.
    """
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    chosen: set[pytest.Item] = set()
    for group in cases.values():
        chosen.update(item for item in group if item.get_closest_marker("always"))
        quick = [item for item in group if item not in chosen and not item.get_closest_marker("slow")]
        chosen.update(sorted(quick, key=lambda item: zlib.crc32(item.nodeid.encode()))[:CASES])
    return chosen


def names_files(config: pytest.Config) -> bool:
    """Whether tests were asked for by the names of files, rather than by folders or not at all."""
    return bool(config.args) and all(".py" in argument for argument in config.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from hf_posenc.checks import KNOWN_DEVIATIONS

    if KNOWN_DEVIATIONS:
        terminalreporter.section("known deviations of checks")
    for known in KNOWN_DEVIATIONS:
        terminalreporter.line(f"{known.check} of {known.model}-{known.scheme}: {known.tolerance:g}, {known.reason}")
