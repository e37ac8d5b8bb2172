"""The machine that a leaderboard was made on."""

from __future__ import annotations

import os
import platform

from hf_posenc.insight.bench.devices import Cpu


def machine(threads: int) -> dict[str, str]:
    """Processor, cores, threads used for timing, and system, in words."""
    return {
        "processor": Cpu().name, "cores": str(os.cpu_count()), "threads": str(threads),
        "system": f"{platform.system()} {platform.machine()}",
    }  # fmt: skip
