"""Check of gradients: those of the scheme's learned parameters equal finite differences of the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward_with_grad, random_tokens
from hf_posenc.checks.registry import register_check

STEP = 5e-4  # for parameters near 1: a larger step has curvature errors, a smaller one float32 rounding errors
DIRECTIONS = 3
MIN_RELATIVE_NORM, MIN_NORM = 0.1, 1e-6


@register_check("finite_differences", needs_determinism=True, slow=True)
def gradients_match_finite_differences(case: Case) -> Deviation:
    """The gradient of every learned parameter equals a central difference quotient in three random directions.

    A detached parameter moves the loss without a gradient. The value is the largest difference relative to the norm of
    the gradient, or to a tenth of the largest norm if that is larger.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model))
        learned = {n: w for n, w in model.named_parameters() if "posenc." in n and w.requires_grad}
        found = _deviations(model, tokens, learned) if learned else [(0.0, "no parameter: none is learned")]
    return case.deviation("finite_differences", *max(found))


def _deviations(model: nn.Module, tokens: Tensor, learned: dict[str, nn.Parameter]) -> list[tuple[float, str]]:
    weights = list(learned.values())
    computed = torch.autograd.grad(_loss(model, tokens), weights, allow_unused=True)
    gradients = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, computed, strict=True)]
    found = []
    largest = max(float(gradient.norm()) for gradient in gradients)
    for (name, weight), gradient in zip(learned.items(), gradients, strict=True):
        error = max(_directional_error(model, tokens, weight, gradient, seed) for seed in range(DIRECTIONS))
        found.append((error / max(float(gradient.norm()), MIN_RELATIVE_NORM * largest, MIN_NORM), name))
    return found


def _directional_error(model: nn.Module, tokens: Tensor, weight: Tensor, gradient: Tensor, seed: int) -> float:
    """Difference between the directional derivative and the central difference quotient in one random direction."""
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).sign().to(weight)
    difference_quotient = (
        _loss_after_step(model, tokens, weight, STEP * direction)
        - _loss_after_step(model, tokens, weight, -STEP * direction)
    ) / (2 * STEP)
    return abs(float((gradient.double() * direction).sum()) - difference_quotient)


def _loss_after_step(model: nn.Module, tokens: Tensor, weight: Tensor, step: Tensor) -> float:
    """The loss with ``step`` added to a parameter, which is restored."""
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(step)
        try:
            return float(_loss(model, tokens))
        finally:
            weight.copy_(before)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Sum of the outputs with random weights, in float64."""
    out = forward_with_grad(model, tokens).double()
    weights = torch.randn(out.shape[1:], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (out * weights.to(out.device)).sum()
