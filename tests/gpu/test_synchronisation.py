"""A patched model does not wait for the GPU where the unpatched one does not.

A wait is a value that Python reads from the GPU, or a constant that is copied to it: kernels launched before it must
finish, and none is launched meanwhile. Torch warns of each; the messages of failures name the source lines.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ..forward.test_launches import WAITS
from .models import RECIPES, SCHEMES, UNPATCHED, WHOLE, each, patched, tokens_of

TORCH = Path(torch.__file__).parent
ALL = [scheme for scheme in (*SCHEMES, *sorted(RECIPES)) if scheme not in WAITS]
WARMING = 3  # calls before the one that is looked at: kernels are checked, compiled, and compiled for any length


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Source lines that wait for the GPU within the block, and how often."""
    found: Counter[str] = Counter()

    def note(message: Warning | str, *about: object, **more: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            found[source_line()] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def source_line() -> str:
    """The innermost line outside torch that is being run, and two that called it."""
    stack = [
        frame
        for frame in traceback.extract_stack(sys._getframe(2))
        if TORCH not in Path(frame.filename).parents and frame.filename != warnings.__file__
    ]
    return " < ".join(
        f"{'/'.join(Path(f.filename).parts[-3:])}:{f.lineno} {f.name}: {f.line}" for f in reversed(stack[-3:])
    )


def own_waits(measure: Callable[[str], Counter[str]], scheme: str) -> str:
    """What a patched model waits at beyond what the unpatched one does, one line each; empty for nothing."""
    unpatched = Counter(line.split(" < ")[0] for line in measure(UNPATCHED).elements())
    found = []
    for line, times in measure(scheme).items():
        innermost = line.split(" < ")[0]
        known = min(times, unpatched[innermost])
        unpatched[innermost] -= known
        if times > known:
            found.append(f"{times - known} × {line}")
    return "\n".join(found)


@pytest.mark.parametrize("scheme", each(ALL, "waits"))
def test_reading(scheme: str, device: str) -> None:
    tokens = tokens_of(scheme).to(device)

    def measure(name: str) -> Counter[str]:
        model = patched(name).to(device)
        with torch.no_grad():
            for _ in range(WARMING):
                model(tokens)
            with waits() as found:
                model(tokens)
        return found

    assert not (lines := own_waits(measure, scheme)), lines


@pytest.mark.parametrize("scheme", each([name for name in ALL if name not in WHOLE], "waits"))
def test_decoding(scheme: str, device: str) -> None:
    tokens = tokens_of(scheme).to(device)

    def measure(name: str) -> Counter[str]:
        model = patched(name).to(device)
        *first, last = tokens[:, -WARMING - 1 :].split(1, dim=1)
        with torch.no_grad():
            cache = model(tokens[:, : -WARMING - 1], use_cache=True).past_key_values
            for token in first:
                model(token, past_key_values=cache)
            with waits() as found:
                model(last, past_key_values=cache)
        return found

    assert not (lines := own_waits(measure, scheme)), lines


def test_a_wait_is_noticed(device: str) -> None:
    """Control: a value that is read, and a constant that is copied; not a product."""
    numbers = torch.randn(8, 8, device=device)
    torch.mm(numbers, numbers)
    with waits() as found:
        torch.mm(numbers, numbers)
    assert not found
    with waits() as found:
        int(numbers.argmax())
    assert len(found) == 1
    assert "test_a_wait_is_noticed: int(numbers.argmax())" in next(iter(found))
    with waits() as found:
        torch.tensor([0.5], device=device)
    assert len(found) == 1
