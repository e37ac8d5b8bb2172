"""The command line as users start it: quick answers without torch, closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PYTHON = [sys.executable, "-m", "hf_posenc.cli"]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["info", "yarn"]], ids=str)
def test_quick_commands_import_no_torch(words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *PYTHON[1:], *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "hf_posenc.schemes.registry" in imported  # control: the report was read
    assert not {"torch", "transformers", "numpy"} & imported


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, hf_posenc; assert not {'torch', 'transformers'} & set(sys.modules); dir(hf_posenc)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGPIPE, and no /bin/sh")
@pytest.mark.parametrize("command", ["list", "list --json", "info yarn", "--help"])
def test_closed_pipe_is_no_error(command: str) -> None:
    line = f"{' '.join(PYTHON)} {command} | true"
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.stderr == ""
