"""Thousands of patches in one process leave nothing behind: no memory, no objects, no time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
import time
from statistics import median

import pytest
import torch

from hf_posenc import list_schemes, patch_model, unpatch_model
from hf_posenc.errors import PosEncError
from hf_posenc.laws.hosts import host

KINDS = ("llama", "gpt2", "bert")
TEXT = torch.arange(2, 26)[None]
WARM = 0.1
"""Share of the cycles before anything is measured; every scheme comes round in it, or tables fill later."""
GROWTH = 1 << 20
"""Bytes."""


def resident() -> int:
    """Bytes of memory in use; where the system does not tell, the most there ever were.

    What the allocator keeps for the next caller is given back first: its pieces grow and shrink by megabytes.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def defined() -> list[tuple[str, str]]:
    """Every pair of a model and a scheme."""
    found = []
    for kind in KINDS:
        model = host(kind)
        for record in list_schemes():
            try:
                patch_model(model, record.name, factor=1)
            except PosEncError:
                continue
            unpatch_model(model)
            found.append((kind, record.name))
    return found


def test_patch_and_unpatch(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """All schemes round robin, each read once; the models say what they said before."""
    cycles = request.config.getoption("--soak-cycles")
    pairs = defined()
    models = {kind: host(kind) for kind in KINDS}
    with torch.no_grad():
        before = {kind: model(TEXT).logits for kind, model in models.items()}
    seconds, memory, objects = [], [], []
    warm = max(len(pairs), int(WARM * cycles))
    with torch.no_grad():
        for number in range(warm + cycles):
            kind, scheme = pairs[number % len(pairs)]
            model = models[kind]
            started = time.thread_time()  # of this thread alone: the machine is shared
            patch_model(model, scheme, factor=1)
            model(TEXT)
            unpatch_model(model)
            seconds.append(time.thread_time() - started)
            if number >= warm and (number - warm) % len(pairs) == 0:
                memory.append(resident())
                objects.append(len(gc.get_objects()))
        memory.append(resident())
        after = {kind: model(TEXT).logits for kind, model in models.items()}
    steps = [memory[round(share * (len(memory) - 1) / 10)] >> 10 for share in range(11)]
    tenth = max(len(pairs), cycles // 10)
    told = (
        f"{cycles} cycles of {len(pairs)} pairs: memory {steps} KiB, objects "
        f"{objects[0]:,} -> {objects[-1]:,}, median of a cycle {1e3 * median(seconds[warm : warm + tenth]):.2f} ms in "
        f"the first tenth, {1e3 * median(seconds[-tenth:]):.2f} ms in the last"
    )
    with capsys.disabled():
        print(f"\n{told}")  # noqa: T201
    assert all(torch.equal(after[kind], before[kind]) for kind in KINDS)
    assert memory[-1] - memory[0] <= GROWTH, told
    assert objects[-1] - objects[0] <= 0, told
    assert median(seconds[-tenth:]) <= 2 * median(seconds[warm : warm + tenth]), told


def test_what_is_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a patch that is remembered somewhere shows in the number of objects."""
    model, kept = host("llama"), []
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5):
        patch_model(model, "yarn", factor=2)
        kept.append(model.model.__dict__["posenc_patch"])
        unpatch_model(model)
    gc.collect()
    assert len(gc.get_objects()) > before
