"""Peak memory of work with a known peak, in one process each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from hf_posenc.core import memory
from hf_posenc.insight.bench import bench, device_of, random_model
from hf_posenc.insight.bench.results import table

MIB = 2**20
SLACK = 4 * MIB  # pages of Python's own, and of what torch loads at first use

PROGRAM = """
import json, sys, torch
from hf_posenc.insight.bench import device_of
torch.set_num_threads(1)
measure = device_of("cpu").peak

def holds(mib):
    torch.ones(mib * 2**20 // 4)

def one_after_the_other():
    for _ in range(4):
        holds(48)

def together():
    kept = [torch.ones(12 * 2**20) for _ in range(3)]
    del kept

def small():
    kept = [torch.ones(4096) for _ in range(2048)]
    del kept

work = {
    "64 MiB": lambda: holds(64), "nothing": lambda: None, "one after the other": one_after_the_other,
    "together": together, "small": small,
}
measure(lambda: holds(8))  # what torch loads at first use
small()
print(json.dumps({name: measure(run) for name, run in work.items()}))
"""


def measured() -> dict[str, int]:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not memory.reset_peak(), reason="the kernel has no such mark")
def test_a_known_peak() -> None:
    peaks = measured()
    assert peaks.pop("nothing") <= SLACK, "control: what is free again before is not counted"
    # Small blocks stay with the allocator when they are freed, and would hide that they are used again.
    known = {"64 MiB": 64, "one after the other": 48, "together": 144, "small": 32}
    assert peaks.keys() == known.keys()
    assert {name: peak / MIB for name, peak in peaks.items() if abs(peak - known[name] * MIB) > SLACK} == {}


def test_without_a_high_water_mark_there_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "reset_peak", lambda: False)
    assert device_of("cpu").peak(lambda: None) is None
    (cell,) = bench(random_model((1, 32, 2, 2), 64, torch.float32), "yarn", [16], rounds=1)
    assert cell.state == "done"
    assert cell.memory_ratio() is None
    assert table([cell], "prefill")[1][0][-1] == "—"
