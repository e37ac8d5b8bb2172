"""How many threads a command may have, and how they wait for each other."""

from __future__ import annotations

import os

POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Threads that wait give their core away. By default those of GNU and Intel OpenMP spin for a while: beside another
busy process they take the cores from the threads that they wait for."""
MOST_THREADS = 1024
"""OpenMP ends the process where the system has no room for more."""
ANY = (*POLICY, "GOMP_SPINCOUNT")


def wait_passively() -> None:
    """Let waiting threads sleep, unless the user's environment says how they wait; before torch is loaded."""
    if not any(name in os.environ for name in ANY):
        os.environ.update(POLICY)
