"""Run tests in forked children of one process that has imported torch and transformers; each child imports `hf_posenc`.

A test that never enters a function cannot notice a change in it. So all tests run once on the unchanged tree, which
records the functions that each enters and its duration. A mutant then runs only the tests that enter its function, the
quickest first.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import Phase, settings

FIRST = {"torch", *(f"transformers.models.{host}.modeling_{host}" for host in ("llama", "gpt2", "bert"))}
MIRRORED = ("patches/", "eval/")  # folders at the top of the repository that are linked into the package
PATIENCE = 20
"""Limit of wall-clock seconds per processor second: ends tests that wait for ever, and tolerates a busy machine."""
QUIET = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-n", "0"]


@dataclass(frozen=True)
class Test:
    """Record of a test that ran."""

    name: str
    seconds: float
    entered: frozenset[tuple[str, int]]  # functions of the package as (file, first line)
    passed: bool

    @property
    def file(self) -> str:
        """File of the test."""
        return self.name.partition("::")[0]


def record(tree: Path, *files: str, names: list[str] | None = None) -> tuple[list[Test], list[str]]:
    """Run the tests of some files, or those called ``names``; return their records and the imported modules."""
    recorder, answer = Recorder(tree), tree / f"{os.getpid()}.json"

    def work() -> int:
        status = pytest.main([*QUIET[1:], *files], plugins=[recorder, Chosen(names)])
        answer.write_text(json.dumps([recorder.tests, sorted(sys.modules)]))
        return status

    if in_child(tree, work, seconds=3600.0) not in (0, 1, 5):
        raise RuntimeError(f"{', '.join(files)} cannot be run without a change. Mend that first.")
    tests, modules = json.loads(answer.read_text())
    return [Test(n, s, frozenset((f, line) for f, line in entered), ok) for n, s, entered, ok in tests], modules


def warm(modules: set[str]) -> None:
    """Import the modules that tests need, except the package itself, which differs from child to child."""
    for name in sorted(modules - set(sys.modules)):
        if name.partition(".")[0] in ("torch", "transformers", "mpmath", "peft", "numpy"):
            with suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy every page


def run(tree: Path, arguments: list[str], names: list[str] | None, seconds: float) -> int:
    """Exit status of pytest on a tree: 0 is a pass, positive a failure, negative a signal or a timeout."""

    def work() -> int:
        sys.dont_write_bytecode = True
        return pytest.main([*QUIET, *arguments], plugins=[Chosen(names)])

    status = in_child(tree, work, seconds)
    return 0 if status == 5 else status  # no test found


def in_child(tree: Path, work: Callable[[], int], seconds: float) -> int:
    """Exit status of ``work`` in a forked child, in the folder ``tree``, with a limit of processor time."""
    child = os.fork()
    if child:
        status = waited_for(child, time.monotonic() + PATIENCE * seconds)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that the child started
        return status
    status = 70
    try:
        os.setsid()
        signal.setitimer(signal.ITIMER_PROF, seconds)  # without a handler this signal ends the child
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
        status = int(work())
    finally:
        os._exit(status)


def waited_for(child: int, until: float) -> int:
    """Exit status of a child, which is killed at the clock time ``until``."""
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def processor_seconds() -> float:
    """Processor seconds of this process and of its finished children."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def path_of(file: str) -> str:
    """Path of a file of the package, relative to the root of the repository."""
    inside = file.removeprefix("hf_posenc/")
    return inside if inside.startswith(MIRRORED) else file


class Recorder:
    """pytest plugin that records for every test its seconds, the functions it enters, and whether it passed."""

    def __init__(self, tree: Path) -> None:
        self.tests: list[tuple[str, float, list[tuple[str, int]], bool]] = []
        self.root, self.package = len(str(tree)) + 1, str(tree / "hf_posenc")
        self.entered: set[tuple[str, int]] = set()
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run one test with empty function caches, and record it."""
        for module in [module for name, module in sys.modules.items() if name.startswith("hf_posenc")]:
            for member in vars(module).values():
                if isinstance(member, _lru_cache_wrapper):
                    member.cache_clear()
        self.entered, start = set(), processor_seconds()
        sys.settrace(self.note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            seconds = processor_seconds() - start
            self.tests.append((item.nodeid, seconds, sorted(self.entered), item.nodeid not in self.failed))

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace function: record an entered function of the package."""
        code = frame.f_code
        if code.co_filename.startswith(self.package):
            self.entered.add((path_of(code.co_filename[self.root :]), code.co_firstlineno))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failed test."""
        if report.failed:
            self.failed.add(report.nodeid)


class Chosen:
    """pytest plugin that runs the named tests in the order of the names, without shrinking failing examples."""

    def __init__(self, names: list[str] | None) -> None:
        self.place = None if names is None else {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Disable shrinking, after the tests have loaded their own profile: nobody reads the smallest example."""
        settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect tests that are not named."""
        if self.place is not None:
            items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda item: self.place[item.nodeid])
