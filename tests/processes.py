"""Start programs from tests, each in its own process group, and kill the group after a timeout."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 1800
"""Seconds; a launch takes twenty on an idle machine."""
LAUNCH_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK")


def environment(**more: str) -> dict[str, str]:
    """Environment of a program: one thread, no network, and no variables of another launch."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCH_VARIABLES}
    return inherited | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"} | more


def start(
    words: Sequence[Any], *, python: str = sys.executable, env: dict[str, str] | None = None, **how: Any
) -> subprocess.Popen:
    """Start a Python program; ``words`` are its arguments."""
    return subprocess.Popen(
        [python, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=env or environment(), **how,
    )  # fmt: skip


def end(process: subprocess.Popen, limit: float = LIMIT) -> tuple[int, str, str]:
    """Wait for a program; return its exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, out, err


def finish(process: subprocess.Popen) -> str:
    """Standard output of a program, which must exit with 0."""
    code, out, err = end(process)
    assert code == 0, err[-3000:]
    return out


def launch(*words: Any, **more: str) -> str:
    """Standard output of a program that accelerate launches on a free port; ``words`` follow accelerate's options."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    accelerate = ["-m", "accelerate.commands.launch", "--main_process_port", port]
    return finish(start([*accelerate, *words], env=environment(CUDA_VISIBLE_DEVICES="", **more)))
