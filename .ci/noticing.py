"""Runs tests in forked children of one warm process, which imports torch and transformers once; `hf_posenc` each child.

A test that never enters a function cannot notice a change in it. So the tests run once on the tree as it is, to write
down which functions of the package each of them enters and how long it takes; a mutant then meets only those that
enter its function, quickest first.
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
MIRRORED = ("patches/", "eval/")  # stand at the top of the repository, and are linked into the package
PATIENCE = 20
"""Seconds by the clock for each of the processor: a test that waits for ever takes none of these, on a busy machine."""
QUIET = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-n", "0"]


@dataclass(frozen=True)
class Test:
    """What is known of a test that ran."""

    name: str
    seconds: float
    entered: frozenset[tuple[str, int]]  # functions of the package: file, first line
    passed: bool

    @property
    def file(self) -> str:
        """Where it is written."""
        return self.name.partition("::")[0]


def record(tree: Path, *files: str, names: list[str] | None = None) -> tuple[list[Test], list[str]]:
    """The tests of some files, or the named ones of them, as they run on a tree, and the modules they needed."""
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
    """Import what tests need, so that no child has to; the package itself differs from child to child."""
    for name in sorted(modules - set(sys.modules)):
        if name.partition(".")[0] in ("torch", "transformers", "mpmath", "peft", "numpy"):
            with suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy every page


def run(tree: Path, arguments: list[str], names: list[str] | None, seconds: float) -> int:
    """How pytest ends on a tree: 0 is well, above is a failure, below is a signal or the end of its time."""

    def work() -> int:
        sys.dont_write_bytecode = True
        return pytest.main([*QUIET, *arguments], plugins=[Chosen(names)])

    status = in_child(tree, work, seconds)
    return 0 if status == 5 else status  # no test found


def in_child(tree: Path, work: Callable[[], int], seconds: float) -> int:
    """Exit status of a child that works in a tree, for so many seconds of processor time."""
    child = os.fork()
    if child:
        status = waited_for(child, time.monotonic() + PATIENCE * seconds)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it left behind
        return status
    status = 70
    try:
        os.setsid()
        signal.setitimer(signal.ITIMER_PROF, seconds)  # nobody handles this signal: it ends the child
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
    """Exit status of a child, which is ended when its time by the clock is up."""
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def used() -> float:
    """Seconds of processor time of this process and of the programs it has run."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def path_of(file: str) -> str:
    """A file of the package, from the root of the repository."""
    inside = file.removeprefix("hf_posenc/")
    return inside if inside.startswith(MIRRORED) else file


class Recorder:
    """Of every test: seconds, functions entered, and whether it passed."""

    def __init__(self, tree: Path) -> None:
        self.tests: list[tuple[str, float, list[tuple[str, int]], bool]] = []
        self.root, self.package = len(str(tree)) + 1, str(tree / "hf_posenc")
        self.entered: set[tuple[str, int]] = set()
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, with nothing remembered from the one before."""
        for module in [module for name, module in sys.modules.items() if name.startswith("hf_posenc")]:
            for thing in vars(module).values():
                if isinstance(thing, _lru_cache_wrapper):
                    thing.cache_clear()
        self.entered, start = set(), used()
        sys.settrace(self.note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            seconds = used() - start
            self.tests.append((item.nodeid, seconds, sorted(self.entered), item.nodeid not in self.failed))

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """A function is entered."""
        code = frame.f_code
        if code.co_filename.startswith(self.package):
            self.entered.add((path_of(code.co_filename[self.root :]), code.co_firstlineno))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what failed."""
        if report.failed:
            self.failed.add(report.nodeid)


class Chosen:
    """Runs the named tests only, in the order of the names, and takes the first example that fails."""

    def __init__(self, names: list[str] | None) -> None:
        self.place = None if names is None else {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """After the tests' own profile: nobody reads the smallest example."""
        settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what is not named."""
        if self.place is not None:
            items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda item: self.place[item.nodeid])
