"""Thousands of patches in one process leak no memory, no objects and no work."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys

import pytest
import torch
from transformers import PreTrainedModel

from hf_posenc import list_schemes, patch_model, unpatch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import PosEncError

pytestmark = pytest.mark.slow

KINDS = ("llama", "gpt2", "bert")
TEXT = torch.arange(2, 26)[None]
WARM = 0.1
"""Share of the cycles before anything is measured; every scheme comes round in it, or tables fill later."""
GROWTH = 1 << 19
"""Bytes by which memory may grow in both halves: the allocator may take one piece more, a leak grows all the time."""
MORE = 0.01
"""Share by which the calls of functions in a round may grow; a cache that is full is missed here and there."""


class Calls:
    """Counts the functions, of Python and of C, that are called while it is entered: work that no clock has to tell."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def note(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


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
        model = tiny_model(kind)
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
    models = {kind: tiny_model(kind) for kind in KINDS}
    with torch.no_grad():
        before = {kind: model(TEXT).logits for kind, model in models.items()}
    memory, objects = [], []
    warm, cycles = max(len(pairs), int(WARM * cycles)), max(2 * len(pairs), cycles)
    early, late = Calls(), Calls()  # a round each: every pair once
    with torch.no_grad():
        for number in range(warm + cycles):
            kind, scheme = pairs[number % len(pairs)]
            first, last = warm <= number < warm + len(pairs), number >= warm + cycles - len(pairs)
            with early if first else late if last else contextlib.nullcontext():
                cycle(models[kind], scheme)
            if number >= warm and (number - warm) % len(pairs) == 0:
                memory.append(resident())
                objects.append(len(gc.get_objects()))
        memory.append(resident())
        after = {kind: model(TEXT).logits for kind, model in models.items()}
    steps = [memory[round(share * (len(memory) - 1) / 10)] >> 10 for share in range(11)]
    summary = (
        f"{cycles} cycles of {len(pairs)} pairs: memory {steps} KiB, objects "
        f"{objects[0]:,} -> {objects[-1]:,}, calls of functions in a round {early.count:,} -> {late.count:,}"
    )
    with capsys.disabled():
        print(f"\n{summary}")  # noqa: T201
    assert all(torch.equal(after[kind], before[kind]) for kind in KINDS)
    middle = memory[len(memory) // 2]
    assert min(middle - memory[0], memory[-1] - middle) <= GROWTH, summary
    # A leak is at least an object a round; another thread of the process may make a single one meanwhile.
    assert objects[-1] - objects[0] < len(objects) - 1, summary
    assert early.count > 1000 * len(pairs), "control: they are counted"
    assert late.count <= (1 + MORE) * early.count, summary


def cycle(model: PreTrainedModel, scheme: str) -> None:
    """Patch, read, unpatch."""
    patch_model(model, scheme, factor=1)
    model(TEXT)
    unpatch_model(model)


def test_leaked_objects_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a patch that is remembered somewhere shows in the number of objects."""
    model, kept = tiny_model("llama"), []
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5):
        patch_model(model, "yarn", factor=2)
        kept.append(model.model.__dict__["posenc_patch"])
        unpatch_model(model)
    gc.collect()
    assert len(gc.get_objects()) > before


def test_growing_work_is_detected() -> None:
    """Control: a list of all former patches that each patch looks through."""
    former: list[int] = []

    def look(rounds: int) -> int:
        with Calls() as calls:
            for _ in range(rounds):
                former.append(sum(each.bit_length() for each in former))
        return calls.count

    first = look(20)
    assert look(20) > (1 + MORE) * first
