"""Checks of training: learned parameters get gradients, and gradient checkpointing does not change them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward_with_grad, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.core.torch_state import drawn_from


@register_check("gradients")
def learned_parameters_get_gradients(case: Case) -> Deviation:
    """Every gradient is finite, and the scheme's own parameters have gradients that are not all zero.

    The value is the number of parameters for which that is not true.
    """
    with case.patched() as model:
        grads = gradients(model, case.clip_length(2 * case.trained_length + 6, model))
    wrong = [name for name, grad in grads.items() if not _is_valid(name, grad)]
    return case.deviation("gradients", float(len(wrong)), ", ".join(wrong[:5]) or "no parameter")


@register_check("gradient_checkpointing", needs_copy=True)
def checkpointing_changes_no_gradient(case: Case, reentrant: bool = False) -> Deviation:
    """Gradients with and without gradient checkpointing are equal, relative to each gradient's largest entry.

    See `max_gradient_deviation` for parameters without influence.
    """
    with case.patched() as model:
        length = case.clip_length(2 * case.trained_length + 6, model)
        model.train()  # transformers checkpoints in training mode only
        plain = gradients(model, length)
        enable_checkpointing(model, reentrant)
        recomputed = gradients(model, length, backward=True)
    return case.deviation("gradient_checkpointing", *max_gradient_deviation(plain, recomputed))


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
    with torch.enable_grad(), drawn_from(0):  # equal random draws in every call
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
