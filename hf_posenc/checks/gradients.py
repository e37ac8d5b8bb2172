"""Check of learning: the gradient of what a scheme learns is the slope that moving it a little shows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward_with_grad, random_tokens
from hf_posenc.checks.registry import register_check

STEP = 5e-4  # of parameters near 1: larger ones bend, and with smaller ones a float32 loss moves by its roundings
DIRECTIONS = 3
LITTLE, LEAST = 0.1, 1e-6


@register_check("secant", company=True, costly=True)
def gradient_is_the_slope(pair: Case) -> Deviation:
    """Every learned parameter is moved in random directions; the loss must move as its gradient says.

    A part that is detached moves the loss and has no gradient. The value is the largest deviation, in units of what a
    random direction moves by the gradient; of a parameter on which little depends, by a tenth of the most that depends
    on one.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(2 * pair.trained + 6, model))
        learned = {n: w for n, w in model.named_parameters() if "posenc." in n and w.requires_grad}
        found = _deviations(model, tokens, learned) if learned else [(0.0, "no parameter: none is learned")]
    return pair.gap("secant", *max(found))


def _deviations(model: nn.Module, tokens: Tensor, learned: dict[str, nn.Parameter]) -> list[tuple[float, str]]:
    weights = list(learned.values())
    given = torch.autograd.grad(_loss(model, tokens), weights, allow_unused=True)
    gradients = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, given, strict=True)]
    found = []
    most = max(float(gradient.norm()) for gradient in gradients)
    for (name, weight), gradient in zip(learned.items(), gradients, strict=True):
        apart = max(_apart(model, tokens, weight, gradient, seed) for seed in range(DIRECTIONS))
        found.append((apart / max(float(gradient.norm()), LITTLE * most, LEAST), name))
    return found


def _apart(model: nn.Module, tokens: Tensor, weight: Tensor, gradient: Tensor, seed: int) -> float:
    """How far a gradient's slope in one direction is from the secant's."""
    way = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).sign().to(weight)
    secant = (_moved(model, tokens, weight, STEP * way) - _moved(model, tokens, weight, -STEP * way)) / (2 * STEP)
    return abs(float((gradient.double() * way).sum()) - secant)


def _moved(model: nn.Module, tokens: Tensor, weight: Tensor, by: Tensor) -> float:
    """The loss with a parameter moved, which is then put back."""
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.add_(by)
        try:
            return float(_loss(model, tokens))
        finally:
            weight.copy_(kept)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits weighed at random and added up, in float64."""
    out = forward_with_grad(model, tokens).double()
    weights = torch.randn(out.shape[1:], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (out * weights.to(out.device)).sum()
