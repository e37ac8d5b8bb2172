"""Without private operators whole models compute the same by public routes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.checks import Case, longest_case

PAIRS = [
    (kind, scheme)
    for kind, schemes in {
        "llama": ("yarn", "alibi", "t5", "kerple", "fox", "self_extend", "rerope", "dca", "string", "sinks", "window",
                  "dynamic_ntk", "longrope", "xpos", "shaw", "cope", "sandwich", "ssmax", "none"),
        "gpt2": ("alibi", "rope", "t5", "learned"),
        "bert": ("alibi", "rope", "t5", "deberta"),
    }.items()
    for scheme in schemes
]  # fmt: skip
LIMIT = 2e-5  # of logits of about 1: two orders of the same additions


def logits_and_gradients(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of a text, and gradients of its loss."""
    torch.manual_seed(0)  # what a scheme has to learn starts at random
    with case.patched() as model:
        ids = torch.randint(3, 90, (2, case.clip_length(72, model)), generator=torch.Generator().manual_seed(0))
        logits = model(ids).logits
        logits.float().log_softmax(-1).square().mean().backward()
        return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("kind", "scheme"), PAIRS, ids=lambda name: name)
def test_equal_without_them(kind: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = longest_case(kind, scheme)
    with_it, gradients = logits_and_gradients(case)
    monkeypatch.setenv("HF_POSENC_NO_PRIVATE_OPS", "1")
    monkeypatch.setattr(flash_cpu, "AVAILABLE", flash_cpu.available())  # as on import
    assert not flash_cpu.AVAILABLE
    without, others = logits_and_gradients(case)
    assert (with_it - without).abs().max() <= LIMIT * max(1.0, with_it.abs().max().item())
    assert gradients.keys() == others.keys()
    largest = max(gradient.abs().max().item() for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert (gradient - others[name]).abs().max() <= 1e-4 * largest, name


def test_control_private_operators_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: otherwise the tests above compare the public way with itself."""
    if not flash_cpu.AVAILABLE:
        pytest.skip("this torch has no such operator")
    seen = []
    own = flash_cpu.forward
    monkeypatch.setattr(flash_cpu, "forward", lambda *args, **kwargs: seen.append(1) or own(*args, **kwargs))
    logits_and_gradients(longest_case("llama", "alibi"))
    assert seen
