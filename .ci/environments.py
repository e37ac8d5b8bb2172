"""Build the environment of a point with pip, and run a suite in it with pytest."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from points import Point, number

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 2 * 3600  # seconds of one suite


class CannotBuild(Exception):
    """An environment cannot be built, or its tests do not end; the message gives the reason."""


def git(*words: str) -> bytes:
    """Standard output of a git command in the repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def exported(commit: str, tree: Path) -> Path:
    """Extract the files of a commit into the new folder ``tree``, and return it."""
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", tree], input=git("archive", commit), check=True)
    return tree


def build(point: Point, env: Path, code: Path) -> Path:
    """Build the environment of a point, and return its interpreter."""
    env.parent.mkdir(parents=True, exist_ok=True)
    python = env / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter(point.python), "-m", "venv", "--without-pip", env], check=True)
    constraints = env / "constraints.txt"
    constraints.write_text(point.constraints(code), encoding="utf-8")
    install = [
        "install",
        "--quiet",
        "--no-compile",
        "-c",
        constraints,
        "-e",
        ".[all,test]",
    ]  # most files are never imported
    command = [sys.executable, "-m", "pip", "--python", python, *install]
    done = subprocess.run(command, cwd=code, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise CannotBuild(f"pip: {' '.join(reasons[:3])[:400]}")
    return python


def interpreter(version: str) -> Path:
    """The newest interpreter of this version, from pyenv or PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = list(pyenv.glob(f"{version}.*/bin/python"))
    candidates.sort(key=lambda file: number(file.parts[-3]), reverse=True)
    if on_path := shutil.which(f"python{version}"):
        candidates.append(Path(on_path))
    for python in candidates:
        answer = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if answer.stdout.startswith(f"Python {version}."):
            return python
    raise CannotBuild(f"There is no Python {version} in pyenv or on PATH. Install it.")


def interpreter_version(python: Path) -> str:
    """Full version of an interpreter, such as ``"3.11.9"``."""
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def installed(python: Path, names: list[str]) -> dict[str, str]:
    """Installed versions of some packages."""
    program = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    return json.loads(subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout)


def tested(python: Path, arguments: list[str], code: Path, log: Path) -> dict[str, Any]:
    """Run a suite, and return its counts, failures, seconds and command."""
    report = code.parent / "report.xml"
    report.unlink(missing_ok=True)
    inherited = {name: own for name, own in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON", "HF_"))}
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        try:
            subprocess.run(
                command,
                cwd=code,
                env=inherited | quiet,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"The suite took longer than {LIMIT} s.") from None
    if not report.exists():
        raise CannotBuild(f"pytest wrote no report; it said: {log.read_text(encoding='utf-8').strip()[-300:]}")
    seconds = round(time.monotonic() - started)
    return counted(report) | {"seconds": seconds, "command": shlex.join(["pytest", *arguments])}


def counted(report: Path) -> dict[str, Any]:
    """Counts and names of failed tests in a JUnit report."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    failed, skipped = (int(suite.get("failures")) + int(suite.get("errors"))), int(suite.get("skipped"))
    failures = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    passed = int(suite.get("tests")) - failed - skipped
    return {"passed": passed, "failed": failed, "skipped": skipped, "failures": failures}
