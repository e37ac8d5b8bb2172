"""Without the private operator, every call takes a public route with the same result."""

from __future__ import annotations

import pytest
import torch

from hf_posenc.attention.kernels import flash_cpu

from .formula import Problem
from .test_formula import ROUTES


@pytest.fixture
def no_private_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_POSENC_NO_PRIVATE_OPS", "1")
    monkeypatch.setattr(flash_cpu, "AVAILABLE", flash_cpu.available())  # as on import
    assert not flash_cpu.AVAILABLE


@pytest.mark.usefixtures("no_private_ops")
@pytest.mark.parametrize("kind", ROUTES)
def test_causal(kind: str) -> None:
    problem = Problem(kind, queries=150 if kind != "rows" else 40)
    assert problem.route() in ("dense_blocks", "sliding_window", "length_rotation")
    assert problem.deviation() <= problem.limit


def test_the_operator_is_used_where_it_exists() -> None:
    """Control: otherwise the tests above compare the public way with itself."""
    if not flash_cpu.AVAILABLE:
        pytest.skip("this torch has no CPU flash operator that takes a mask together with causality")
    assert Problem("toeplitz").route() == "toeplitz_bias"


def reading_past(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *call: object, **more: object) -> tuple:
    """The operator of torch 2.8: every query head reads a key head of its own number, in whatever memory that is."""
    key, value = (t.as_strided(query.shape, t.stride(), t.storage_offset()) for t in (key, value))
    return OPERATOR(query, key, value, *call, **more)


OPERATOR = flash_cpu.forward


def test_an_operator_without_shared_key_heads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_cpu, "forward", reading_past)
    assert not flash_cpu.shares_key_heads()


@pytest.mark.parametrize("kind", ["key bias", "toeplitz", "two regions", "rows"])
def test_an_operator_without_shared_key_heads_gets_repeated_keys(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory behind the keys would have been read without an error."""
    assert flash_cpu.AVAILABLE
    seen = []

    def strict(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *call: object, **more: object) -> tuple:
        seen.append(query.shape[1] == key.shape[1] == value.shape[1])
        return OPERATOR(query, key, value, *call, **more)

    monkeypatch.setattr(flash_cpu, "forward", strict)
    monkeypatch.setattr(flash_cpu, "SHARES_KEY_HEADS", False)
    problem = Problem(kind, queries=150, keys=150)
    assert problem.deviation() <= problem.limit
    assert seen
    assert all(seen)
