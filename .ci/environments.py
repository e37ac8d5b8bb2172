"""The environment of a point: built with pip, and a suite run in it with pytest."""

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
    """An environment that could not be made, or whose tests did not end, and why."""


def git(*words: str) -> bytes:
    """What git says."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def exported(commit: str, tree: Path) -> Path:
    """The files of a commit."""
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", tree], input=git("archive", commit), check=True)
    return tree


def build(point: Point, env: Path, code: Path) -> Path:
    """Make the environment of a point; its interpreter."""
    env.parent.mkdir(parents=True, exist_ok=True)
    python = env / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter(point.python), "-m", "venv", "--without-pip", env], check=True)
    constraints = env / "constraints.txt"
    constraints.write_text(point.constraints(code), encoding="utf-8")
    install = ["install", "--quiet", "--no-compile", "-c", constraints, "-e", ".[all,test]"]  # most is never imported
    command = [sys.executable, "-m", "pip", "--python", python, *install]
    done = subprocess.run(command, cwd=code, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise CannotBuild(f"pip: {' '.join(reasons[:3])[:400]}")
    return python


def interpreter(version: str) -> Path:
    """An interpreter of this version, of pyenv's or on PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda file: number(file.parts[-3]), reverse=True)
    if on_path := shutil.which(f"python{version}"):
        found.append(Path(on_path))
    for python in found:
        with_version = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if with_version.stdout.startswith(f"Python {version}."):
            return python
    raise CannotBuild(f"There is no Python {version} on this machine, neither of pyenv nor on PATH.")


def interpreter_version(python: Path) -> str:
    """All digits of the version of an interpreter."""
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def installed(python: Path, names: list[str]) -> dict[str, str]:
    """Versions of these packages, as they came out."""
    program = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    return json.loads(subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout)


def tested(python: Path, arguments: list[str], code: Path, log: Path) -> dict[str, Any]:
    """Run a suite; how it ended, and what failed."""
    report = code.parent / "report.xml"
    report.unlink(missing_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHON", "HF_"))}
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        try:
            subprocess.run(
                command, cwd=code, env=kept | quiet, stdout=out, stderr=subprocess.STDOUT, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"The suite took longer than {LIMIT} s.") from None
    if not report.exists():
        raise CannotBuild(f"pytest wrote no report; it said: {log.read_text(encoding='utf-8').strip()[-300:]}")
    seconds = round(time.monotonic() - started)
    return counted(report) | {"seconds": seconds, "command": shlex.join(["pytest", *arguments])}


def counted(report: Path) -> dict[str, Any]:
    """Numbers of a JUnit report."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    failed, skipped = (int(suite.get("failures")) + int(suite.get("errors"))), int(suite.get("skipped"))
    failures = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    passed = int(suite.get("tests")) - failed - skipped
    return {"passed": passed, "failed": failed, "skipped": skipped, "failures": failures}
