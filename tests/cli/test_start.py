"""The command line as users start it: quick answers without torch, odd terminals, closed streams, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PYTHON = [sys.executable, "-m", "hf_posenc.cli"]
posix = pytest.mark.skipif(os.name == "nt", reason="there is no SIGPIPE, and no /bin/sh")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["info", "yarn"]], ids=str)
def test_quick_commands_import_no_torch(words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *PYTHON[1:], *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "hf_posenc.schemes.registry" in imported  # control: the report was read
    assert not {"torch", "transformers", "numpy"} & imported


SIGNALLED = """
import signal, sys
from hf_posenc.cli import stoppable
with stoppable():
    try:
        signal.raise_signal(int(sys.argv[1]))
    finally:
        print("cleaned up")
        if sys.argv[2:]:
            signal.raise_signal(int(sys.argv[1]))
            print("went on")
"""


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("again", [False, True])
def test_the_first_signal_lets_a_command_clean_up_and_the_second_does_not(number: signal.Signals, again: bool) -> None:
    command = [sys.executable, "-u", "-c", SIGNALLED, str(int(number)), *["again"] * again]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "cleaned up\n", "")
