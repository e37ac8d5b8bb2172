"""Peaks of memory, of work whose peak is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hf_posenc.bench import memory

MIB = 2**20
SLACK = 4 * MIB  # pages of Python's own, and of what torch loads at first use
MEASURES = [
    pytest.param(
        memory.high_water,
        marks=pytest.mark.skipif(not memory.has_high_water(), reason="the kernel has no such mark"),
    ),
    memory.allocated,
]


def least(measure: Callable, run: Callable[[], None]) -> int:
    """Of three: what another thread of this process allocates meanwhile is counted, and only ever adds."""
    return min(measure(run) for _ in range(3))


def holds(mib: int) -> Callable[[], None]:
    def run() -> None:
        torch.ones(mib * MIB // 4)

    return run


@pytest.mark.parametrize("measure", MEASURES)
def test_a_known_peak(measure: Callable) -> None:
    measure(holds(8))  # what torch loads at first use
    assert abs(least(measure, holds(64)) - 64 * MIB) <= SLACK
    assert least(measure, lambda: None) <= SLACK  # control: what is free again before is not counted


@pytest.mark.parametrize("measure", MEASURES)
def test_the_peak_is_not_the_sum(measure: Callable) -> None:
    def one_after_the_other() -> None:
        for _ in range(4):
            holds(48)()

    def together() -> None:
        kept = [torch.ones(12 * MIB) for _ in range(3)]
        del kept

    one = least(measure, one_after_the_other)
    # In a process that has mapped very many blocks the allocator keeps a freed one beside the next; the sum is 192.
    assert 48 * MIB - SLACK <= one <= 96 * MIB + SLACK
    assert abs(least(measure, together) - 144 * MIB) <= SLACK


@pytest.mark.parametrize("measure", MEASURES)
def test_memory_that_was_used_before_is_counted_again(measure: Callable) -> None:
    """Small blocks stay with the allocator when they are freed, and would hide that they are used again."""

    def small() -> None:
        kept = [torch.ones(4096) for _ in range(2048)]
        del kept

    small()
    assert abs(least(measure, small) - 32 * MIB) <= SLACK


def test_without_a_high_water_mark_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "has_high_water", lambda: False)
    assert memory.peak(holds(16)) == 16 * MIB
