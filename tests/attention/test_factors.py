"""A scale of the logits equals a scale of q · k where no bias is added: on every route, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes.dense_blocks import attend_with_weights

from .formula import Problem

WITHOUT_BIAS = ("plain", "two regions", "chunks", "first keys", "split by row", "window", "rows")
SIZES = {"text": (75, 75), "chunk": (9, 75), "token": (1, 75)}


def twins(problem: Problem, factor: float) -> tuple[AttentionCall, AttentionCall]:
    """The same call with the factor in either place."""
    call = problem.call()
    terms = replace(call.terms, logit_scale=1.0)
    return (
        replace(call, terms=replace(terms, logit_scale=factor)),
        replace(call, terms=terms, scaling=call.scaling * factor),
    )


@pytest.mark.parametrize("mask_kind", ["none", "bool"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", WITHOUT_BIAS)
def test_a_logit_scale_is_a_factor_of_the_scores(kind: str, size: str, mask_kind: str) -> None:
    queries, keys = SIZES[size]
    problem = Problem(kind, queries=queries, keys=keys, mask_kind=mask_kind)
    with torch.no_grad():
        one, two = (dispatch.attend(call) for call in twins(problem, 1.7))
        plain = dispatch.attend(twins(problem, 1.0)[0])
    assert (one - two).abs().max() <= problem.limit
    assert (one - plain).abs().max() > 1e-3, "control"


@pytest.mark.parametrize("kind", WITHOUT_BIAS)
def test_gradients_know_the_logit_scale(kind: str) -> None:
    problem = Problem(kind, queries=40, grad=True)
    mixed = (dispatch.attend(call) for call in twins(problem, 1.7))
    ones, twos = (torch.autograd.grad(one.square().sum(), problem.leaves) for one in mixed)
    for one, two in zip(ones, twos, strict=True):
        assert (one - two).abs().max() <= problem.limit * two.abs().max()


@pytest.mark.parametrize("kind", [kind for kind in WITHOUT_BIAS if kind != "rows"])
def test_weights_know_the_logit_scale(kind: str) -> None:
    one, two = (attend_with_weights(call)[1] for call in twins(Problem(kind, queries=40), 1.7))
    assert (one - two).abs().max() <= 1e-6
