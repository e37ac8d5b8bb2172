"""Padding masks are removed, so that fast routes apply; other masks are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.routes import unpadded

from .formula import DOCUMENTS, LEFT, RIGHT, Problem, tokens

LENGTH = 40
KINDS = ("key bias", "toeplitz", "learned table", "two tables", "two regions", "chunks", "first keys", "window")
HOLE = tokens([1] * 5 + [0] * 6 + [1] * 29, [1] * 40)
needs_kernel = pytest.mark.skipif(not flash_cpu.available(), reason="this torch has no CPU flash operator with masks")


class Padded(Problem):
    """As a model calls it, with its padding mask."""

    def call(self) -> AttentionCall:
        call = super().call()
        real = None if self.real is None else self.real.bool()
        return replace(call, ctx=replace(call.ctx, real_keys=real))


def routes_taken(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    taken = []
    real = dispatch.route
    monkeypatch.setattr(dispatch, "route", lambda call: taken.append(real(call)) or taken[-1])
    problem.engine()
    return taken


@needs_kernel
@pytest.mark.parametrize("mask_kind", ["bool", "float"])
@pytest.mark.parametrize("real", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_removed(kind: str, real: torch.Tensor, mask_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = routes_taken(Padded(kind, queries=LENGTH, real=real, mask_kind=mask_kind), monkeypatch)
    assert len(taken) == 2, "one call a sample"
    assert "dense_blocks" not in taken


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_padded_batch(kind: str) -> None:
    problem = Padded(kind, queries=LENGTH, real=RIGHT, mask_kind="bool", grad=True)
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("changes", [{"real": HOLE}, {"document": DOCUMENTS}], ids=["hole", "documents"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_of_more_than_padding_is_kept(kind: str, changes: dict) -> None:
    """Control: rows before the last document are real, and keys behind a hole stand closer than they are stored."""
    problem = Padded(kind, queries=LENGTH, mask_kind="bool", **changes)
    assert unpadded.runs(problem.call()) is None


WINDOWED = ("key bias", "toeplitz", "learned table", "two tables", "window")
WINDOW = 13


@needs_kernel
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("mask_kind", ["bool", "float"])
@pytest.mark.parametrize("real", [None, LEFT, RIGHT], ids=["unpadded", "left", "right"])
@pytest.mark.parametrize("kind", WINDOWED)
def test_the_window_of_a_mask_is_recognised(
    kind: str, real: torch.Tensor | None, mask_kind: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys outside are not read, whether or not there is padding, and values are those of the formula."""
    if kind == "key bias" and not causal:
        pytest.skip("a bias of the key is causal")
    problem = Padded(kind, queries=LENGTH, real=real, mask_kind=mask_kind, mask_window=WINDOW, causal=causal)
    found = unpadded.runs(problem.call())
    ahead = None if causal else 1 - WINDOW
    assert [(run.window.nearest, run.window.farthest) for run in found] == [(ahead, WINDOW)] * len(found)
    assert "dense_blocks" not in routes_taken(problem, monkeypatch)
    assert problem.deviation() <= problem.limit


@needs_kernel
@pytest.mark.parametrize("mask_kind", ["bool", "float"])
@pytest.mark.parametrize("kind", ["content", "values", "rows"])
def test_a_chunk_whose_mask_hides_nothing(kind: str, mask_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a cache transformers makes a mask of causality alone: terms of all keys are computed without it."""
    problem = Problem(kind, queries=LENGTH, keys=150, mask_kind=mask_kind)
    seen = []
    prepared = dispatch._prepare_route
    monkeypatch.setattr(dispatch, "_prepare_route", lambda call: seen.append(call.mask) or prepared(call))
    with torch.no_grad():
        assert problem.deviation() <= problem.limit
    assert seen == [None]
    call = problem.call()
    call.mask[0, 0, 30, 2] = False if mask_kind == "bool" else torch.finfo(torch.float32).min
    dispatch.prepare(call)
    assert seen[-1] is not None, "control: one pair less"
