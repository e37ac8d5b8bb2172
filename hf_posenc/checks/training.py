"""Checks of training: gradients are finite, equal difference quotients, and stay equal under checkpointing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import forward_with_grad, random_tokens
from hf_posenc.checks.registry import Measured, register_check, worst
from hf_posenc.core.torch_state import fixed_seed


@register_check("gradients")
def learned_parameters_get_gradients(case: Case) -> Measured:
    """Every gradient is finite, and the scheme's own parameters have gradients that are not all zero.

    The value is the number of parameters for which that is not true.
    """
    with case.patched() as model:
        grads = gradients(model, case.clip_length(2 * case.trained_length + 6, model))
    wrong = [name for name, grad in grads.items() if not _is_valid(name, grad)]
    return float(len(wrong)), ", ".join(wrong[:5]) or "no parameter"


@register_check("gradient_checkpointing", needs=("checkpoints_activations",), needs_copy=True)
def checkpointing_changes_no_gradient(case: Case, reentrant: bool = False) -> Measured:
    """Gradients with and without gradient checkpointing are equal, relative to each gradient's largest entry.

    See `max_gradient_deviation` for parameters without influence.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        model.train()  # transformers checkpoints in training mode only
        stored = gradients(model, length)
        enable_checkpointing(model, reentrant)
        recomputed = gradients(model, length, backward=True)
    return max_gradient_deviation(stored, recomputed)


def max_gradient_deviation(one: dict[str, Tensor | None], two: dict[str, Tensor | None]) -> tuple[float, str]:
    """Largest deviation between two sets of gradients, and the parameter it is in.

    Relative to the largest entry of each gradient, or to 1/1000 of the largest of all: parameters without influence,
    such as the bias of the keys, which cancels in softmax, have gradients of rounding errors only.
    """
    least = 1e-3 * max((float(grad.abs().max()) for grad in one.values() if grad is not None), default=1.0)
    worst, location = 0.0, "no parameter"
    for name, grad in one.items():
        other = two[name]
        if grad is None or other is None:
            value = float(grad is not other)
        else:
            value = float((grad - other).abs().max() / grad.abs().max().clamp(min=least))
        if not value <= worst:
            worst, location = value, name
    return worst, location


def gradients(model: nn.Module, length: int, *, rows: int = 2, backward: bool = False) -> dict[str, Tensor | None]:
    """Gradients of a bounded function of all outputs, by parameter name; ``.grad`` of a user's model is not changed.

    Args:
        model: patched or not.
        length: tokens of each text.
        rows: texts in the batch.
        backward: use ``.backward()`` and ``.grad``, which re-entrant checkpointing needs.
    """
    names, weights = zip(*((n, w) for n, w in model.named_parameters() if w.requires_grad), strict=True)
    with torch.enable_grad(), fixed_seed(0):  # equal random draws in every call
        out = forward_with_grad(model, random_tokens(model, length, rows=rows)).float()
        loss = (out.log_softmax(-1)[..., :8]).mean()
    if not backward:
        return dict(zip(names, torch.autograd.grad(loss, weights, allow_unused=True), strict=True))
    loss.backward()
    return {name: weight.grad for name, weight in zip(names, weights, strict=True)}


def enable_checkpointing(model: PreTrainedModel, reentrant: bool) -> None:
    """Enable gradient checkpointing under the name that the installed transformers has for it."""
    mode = {"use_reentrant": reentrant}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=mode)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=mode)


def _is_valid(name: str, grad: Tensor | None) -> bool:
    if "posenc." not in name:
        return grad is None or bool(grad.isfinite().all())  # a pooler or another head does not affect the logits
    return grad is not None and bool(grad.isfinite().all()) and bool(grad.any())


STEP = 5e-4  # for parameters near 1: a larger step has curvature errors, a smaller one float32 rounding errors
DIRECTIONS = 3
MIN_RELATIVE_NORM, MIN_NORM = 0.1, 1e-6


@register_check("finite_differences", needs=("is_deterministic",), slow=True)
def gradients_match_finite_differences(case: Case) -> Measured:
    """The gradient of every learned parameter equals a central difference quotient in three random directions.

    A detached parameter moves the loss without a gradient. The value is the largest difference relative to the norm of
    the gradient, or to a tenth of the largest norm if that is larger.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(2 * case.trained_length + 6, model))
        learned = {n: w for n, w in model.named_parameters() if "posenc." in n and w.requires_grad}
        measured = _deviations(model, tokens, learned) if learned else [(0.0, "no parameter: none is learned")]
    return worst(measured)


def _deviations(model: nn.Module, tokens: Tensor, learned: dict[str, nn.Parameter]) -> list[tuple[float, str]]:
    """Relative error of the gradient of each learned parameter, with its name."""
    weights = list(learned.values())
    computed = torch.autograd.grad(_loss(model, tokens), weights, allow_unused=True)
    gradients = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, computed, strict=True)]
    deviations = []
    largest = max(float(gradient.norm()) for gradient in gradients)
    for (name, weight), gradient in zip(learned.items(), gradients, strict=True):
        error = max(_directional_error(model, tokens, weight, gradient, seed) for seed in range(DIRECTIONS))
        deviations.append((error / max(float(gradient.norm()), MIN_RELATIVE_NORM * largest, MIN_NORM), name))
    return deviations


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
