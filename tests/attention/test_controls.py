"""Negative controls of this folder's comparisons: each breaks one thing and expects a large deviation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hf_posenc.attention.routes import band_cuts
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms, ToeplitzBias

from .formula import WINDOW, Problem, two_regions

LARGE = 1e-2  # a thousand times what the comparisons allow


def with_terms(problem: Problem, terms: Terms) -> Problem:
    """The same problem, but the engine is given other terms than the formula."""
    problem.position = replace(problem.position, terms=lambda ctx, learned: terms)
    return problem


def test_detached_table() -> None:
    problem = Problem("learned table", grad=True)
    detached = problem.learned.detach()
    with_terms(problem, Terms(bias=(ToeplitzBias(lambda d: detached[:, d.clamp(-9, 9) + 9]),), logit_scale=0.8))
    assert problem.deviation() <= 1e-5
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        problem.gradient_deviations()


def test_regions_overlapping_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("two regions")
    assert problem.deviation() <= 1e-5
    along_diagonal = band_cuts.along_diagonal
    wider = lambda number, band, *rest: along_diagonal(number, Band(0, WINDOW + 1), *rest)  # noqa: E731
    monkeypatch.setattr(band_cuts, "along_diagonal", wider)
    assert problem.deviation() > LARGE


def test_boundary_off_by_one() -> None:
    problem = Problem("two regions")
    shifted = Terms(regions=two_regions(WINDOW + 1), logit_scale=1.1)
    assert with_terms(problem, shifted).deviation() > LARGE


def test_ignored_padding() -> None:
    real = torch.ones(2, 29, dtype=torch.long)
    real[0, :9] = 0
    problem = Problem("key bias", real=real, mask_kind="bool")
    exact = problem.expected()[:1, :, 9:]
    problem.mask = lambda: None  # type: ignore[method-assign]
    assert float((problem.engine()[:1, :, 9:].double() - exact).abs().max()) > LARGE
