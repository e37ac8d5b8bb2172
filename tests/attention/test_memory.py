"""No route allocates a number for every query-key pair, neither as a tensor nor inside a kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .formula import ALL, BOTH_WAYS, Problem

LENGTH = 2048
# One run a row: a short text shows the same thing in a fraction of the time.
LENGTHS = {"rows": 200}


class LargestStorage(TorchDispatchMode):
    """Watches every tensor an operator returns. A view counts as what really lies behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.shape = 0, ()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                held = tensor.untyped_storage().nbytes() // tensor.element_size()
                if held > self.elements:
                    self.elements, self.shape = held, tuple(tensor.shape)
        return result


def largest(problem: Problem) -> LargestStorage:
    call = problem.call()
    with LargestStorage() as spy:
        mixed = problem.attend(call)
        if problem.grad:
            torch.autograd.grad(mixed.sum(), problem.leaves)
    return spy


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("kind", ALL)
def test_no_tensor_of_all_pairs(kind: str, grad: bool) -> None:
    length = LENGTHS.get(kind, LENGTH)
    spy = largest(Problem(kind, queries=length, batch=1, heads=2, kv_heads=1, grad=grad))
    assert spy.elements < length * length, spy.shape


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_no_tensor_of_all_pairs_in_an_encoder(kind: str) -> None:
    spy = largest(Problem(kind, queries=LENGTH, batch=1, heads=2, kv_heads=1, causal=False, grad=True))
    assert spy.elements < LENGTH * LENGTH, spy.shape


@pytest.mark.parametrize("kind", ["toeplitz", "two regions", "window"])
def test_dropout_holds_no_more(kind: str) -> None:
    spy = largest(Problem(kind, queries=LENGTH, batch=1, heads=2, kv_heads=1, dropout=0.1, grad=True))
    assert spy.elements < LENGTH * LENGTH, spy.shape


def test_control_the_spy_sees_a_full_matrix() -> None:
    q = torch.randn(1, 2, 64, 8)
    with LargestStorage() as spy:
        (q @ q.transpose(-1, -2)).softmax(-1)
    assert spy.elements >= 2 * 64 * 64
    with LargestStorage() as spy:
        torch.zeros(127).as_strided((64, 64), (1, 1))
    assert spy.elements == 127


MEASURE = """
import json, sys, torch
from formula import Problem
torch.set_num_threads(1)

def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))

def peak(kind, length, grad):
    problem = Problem(kind, queries=length, batch=1, heads=2, kv_heads=1, head_dim=64, grad=grad)
    call = problem.call()
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    mixed = problem.attend(call)
    if grad:
        torch.autograd.grad(mixed.sum(), problem.leaves)
    return status("VmHWM") - before

grown = {}
for kind in sys.argv[1:]:
    for grad in (False, True):
        peak(kind, 512, grad)
        grown[f"{kind}, {'training' if grad else 'forward'}"] = [peak(kind, n, grad) for n in (2048, 4096)]
print(json.dumps(grown))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux' /proc")
def test_peak_memory_doubles_with_the_length() -> None:
    """In a process of its own, so that nobody else's memory is measured. KiB."""
    kinds = ["key bias", "toeplitz", "learned table", "two regions", "window"]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *kinds], cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for what, (short, long) in json.loads(run.stdout).items():
        # 8 MiB for what the allocator keeps and for resident pages, which Linux counts in batches (a call of
        # 1.5 MiB was seen as 0); all pairs of one head would be 16 MiB and 64 MiB.
        assert long <= 2.1 * short + 8192, (what, short, long)
