"""No route allocates a number for every query-key pair, neither as a tensor nor inside a kernel."""

from __future__ import annotations

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


def test_control_the_spy_sees_a_full_matrix() -> None:
    q = torch.randn(1, 2, 64, 8)
    with LargestStorage() as spy:
        (q @ q.transpose(-1, -2)).softmax(-1)
    assert spy.elements >= 2 * 64 * 64
    with LargestStorage() as spy:
        torch.zeros(127).as_strided((64, 64), (1, 1))
    assert spy.elements == 127
