"""Checks of training: gradients arrive where something is learned, and recomputing activations changes none of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward_with_grad, random_tokens
from hf_posenc.checks.registry import register_check


@register_check("gradients")
def gradients_arrive(pair: Case) -> Deviation:
    """Every gradient is finite, and those of the scheme's own parameters are not all zero.

    The value is the number of parameters of which that is not true.
    """
    with pair.patched() as model:
        grads = gradients(model, pair.length(2 * pair.trained + 6, model))
    wrong = [name for name, grad in grads.items() if not _arrived(name, grad)]
    return pair.gap("gradients", float(len(wrong)), ", ".join(wrong[:5]) or "no parameter")


@register_check("checkpointing", copies=True)
def checkpointing_changes_no_gradient(pair: Case, reentrant: bool = False) -> Deviation:
    """Gradients with and without gradient checkpointing are equal, relative to the largest of each parameter.

    A parameter on which nothing depends, such as the bias of the keys, to which softmax is blind, has a gradient of
    roundings alone; it is measured by a thousandth of the largest of all.
    """
    with pair.patched() as model:
        length = pair.length(2 * pair.trained + 6, model)
        model.train()  # transformers recomputes in training mode only
        plain = gradients(model, length)
        enable_checkpointing(model, reentrant)
        again = gradients(model, length, backward=True)
    return pair.gap("checkpointing", *apart(plain, again))


def apart(one: dict[str, Tensor | None], two: dict[str, Tensor | None]) -> tuple[float, str]:
    """Largest deviation of two sets of gradients by parameter, in units of the largest of each, and the parameter."""
    least = 1e-3 * max((float(grad.abs().max()) for grad in one.values() if grad is not None), default=1.0)
    worst, place = 0.0, "no parameter"
    for name, grad in one.items():
        other = two[name]
        if grad is None or other is None:
            value = float(grad is not other)
        else:
            value = float((grad - other).abs().max() / grad.abs().max().clamp(min=least))
        if not value <= worst:
            worst, place = value, name
    return worst, place


def gradients(model: nn.Module, length: int, *, rows: int = 2, backward: bool = False) -> dict[str, Tensor | None]:
    """Gradients of a bounded function of all logits, by parameter; ``.grad`` of a user's model is left alone.

    Args:
        model: patched or not.
        length: tokens of the text.
        rows: texts of the batch.
        backward: go through ``.grad`` after all: re-entrant checkpointing knows no other way.
    """
    names, weights = zip(*((n, w) for n, w in model.named_parameters() if w.requires_grad), strict=True)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is drawn in training is drawn alike every time
        out = forward_with_grad(model, random_tokens(model, length, rows=rows)).float()
        loss = (out.log_softmax(-1)[..., :8]).mean()
    if not backward:
        return dict(zip(names, torch.autograd.grad(loss, weights, allow_unused=True), strict=True))
    loss.backward()
    return {name: weight.grad for name, weight in zip(names, weights, strict=True)}


def enable_checkpointing(model: PreTrainedModel, reentrant: bool) -> None:
    """Switch gradient checkpointing on, under the name the installed transformers has for it."""
    mode = {"use_reentrant": reentrant}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=mode)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=mode)


def _arrived(name: str, grad: Tensor | None) -> bool:
    if "posenc." not in name:
        return grad is None or bool(grad.isfinite().all())  # a pooler, or another head, has no share in the logits
    return grad is not None and bool(grad.isfinite().all()) and bool(grad.any())
