"""`torch.compile(fullgraph=True)` equals eager mode."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import tiny_model

from .case_lists import ALL_CASES, QUICK


def check(case: Case) -> None:
    if math.isinf(case.tolerance("torch_compile")):
        pytest.xfail("a known deviation of hf_posenc.checks.tolerances")
    deviation = CHECKS["torch_compile"](case)
    assert not deviation.failed, deviation


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK[::2], ids=str)
def test_compiled_equals_eager(case: Case) -> None:
    """On every second scheme of those with hooks of their own; the full matrix has all."""
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_every_case_compiles(case: Case) -> None:
    check(case)


@pytest.mark.slow
def test_compiling_warns_of_nothing() -> None:
    """The compiler warns, once a process, where it traces through a cache of Python's: of "silent incorrectness"."""
    model = patch_model(tiny_model("gpt2"), "alibi", factor=2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(model, backend="eager")(random_tokens(model, 24))
