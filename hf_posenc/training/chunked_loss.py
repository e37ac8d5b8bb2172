"""Cross-entropy loss of a language model, computed in chunks so that the logits of all tokens never exist at once.

Logits of L tokens over V words in float32, with their gradient, are the largest tensors of a long row: 2 · 4 · L · V
bytes. Here output layer, loss and gradient are computed together for a chunk of tokens at a time, so that nothing is
computed twice (Liger, arXiv:2410.10989, section 3.2). torch 2.13 has the same as ``linear_cross_entropy``, but its mean
in bfloat16 is wrong by 2 %, and older versions lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers.integrations import is_deepspeed_zero3_enabled

from hf_posenc.core.tested_versions import host_changed
from hf_posenc.core.torch_state import evaluation_mode, fixed_seed
from hf_posenc.errors import TrainingImpossible
from hf_posenc.training.dataset import IGNORED_LABEL

FEWEST = 256  # tokens per chunk; fewer would leave a processor idle
GROWN = 100.0  # factor of the hidden states on which the two losses are compared


@contextmanager
def chunked_loss(model: Any, enabled: bool | None, *, causal: bool, smoothed: bool = False) -> Iterator[bool]:
    """Make ``model(…, labels=…)`` compute its loss in chunks inside the block; its ``logits`` are then hidden states.

    Args:
        model: model with a language-model head; of a PEFT model, the wrapped one.
        enabled: whether to compute in chunks; None: if possible.
        causal: whether labels are the next tokens.
        smoothed: whether `Trainer` smooths labels, which needs the logits.

    Yields:
        Whether the loss is computed in chunks.
    """
    head = inner_head(model)
    obstacle = "" if enabled is False else obstacle_of(model, head, causal=causal, smoothed=smoothed)
    if enabled and obstacle:
        raise TrainingImpossible(f"chunked_loss=True is impossible here: {obstacle}. Choose chunked_loss=None.")
    if enabled is False or head is None or obstacle:
        yield False
        return
    with output_replaced(model, lambda hidden: hidden, partial(loss_in_chunks, head)):
        yield True


@contextmanager
def output_replaced(
    model: Any, output_layer: Callable[[Tensor], Tensor], loss: Callable[..., Tensor]
) -> Iterator[None]:
    """Replace the output layer and the loss function of the model inside the block."""
    outer, own_loss = model.get_output_embeddings(), vars(model).get("_loss_function")
    outer.forward = lambda hidden, *args, **kwargs: output_layer(hidden)
    model._loss_function = loss
    try:
        if model.loss_function is not loss:
            raise host_changed("transformers", "the attribute _loss_function of models, which hf-posenc replaces")
        yield
    finally:
        del outer.forward, model._loss_function
        if own_loss is not None:
            model._loss_function = own_loss


def loss_in_chunks(
    head: nn.Linear,
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Any = None,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Return the mean loss over the labels that count, or its sum divided by ``num_items_in_batch``.

    ``logits`` are the hidden states before the output layer ``head``. Under context parallelism each process has a part
    of a text, and transformers passes the shifted labels as ``shift_labels``.
    """
    if shift_labels is None:
        shift_labels = functional.pad(labels, (0, 1), value=IGNORED_LABEL)[..., 1:]
    targets = shift_labels.flatten().to(logits.device)
    hidden = logits.flatten(0, -2)
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    weight = head.weight.to(hidden.dtype)  # PEFT trains a float32 copy in a half-precision model
    counted = targets != IGNORED_LABEL
    total = _CrossEntropyInChunks.apply(hidden[counted], weight, head.bias, targets[counted])
    count = counted.sum() if num_items_in_batch is None else num_items_in_batch
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


class _CrossEntropyInChunks(torch.autograd.Function):
    """Summed cross entropy of ``hidden @ weight.T + bias`` in float32; differentiable once.

    Shapes: ``hidden`` ``[token, channel]``, ``weight`` ``[word, channel]`` of the same dtype, ``bias`` ``[word]`` or
    None, ``labels`` ``[token]``. The logits of a chunk are about as large as the hidden states of all tokens.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        by_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        by_bias = None
        if bias is not None and ctx.needs_input_grad[2]:
            by_bias = torch.zeros_like(bias, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        size = max(FEWEST, hidden.numel() // len(weight))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), size):
                part = slice(start, start + size)
                states, targets = hidden[part], labels[part, None]
                logits = functional.linear(states, weight, bias if bias is None else bias.to(weight.dtype)).float()
                norm = logits.logsumexp(-1, keepdim=True)
                total += (norm - logits.gather(1, targets)).sum()
                by_logits = logits.sub_(norm).exp_()  # softmax; minus 1 at the label it is the gradient
                by_logits.scatter_add_(1, targets, torch.full_like(targets, -1, dtype=by_logits.dtype))
                if by_bias is not None:
                    by_bias += by_logits.sum(0)
                rounded = by_logits.to(weight.dtype)
                if by_hidden is not None:
                    torch.mm(rounded, weight, out=by_hidden[part])
                if by_weight is not None:
                    by_weight += rounded.T @ states
        ctx.save_for_backward(by_hidden, by_weight, by_bias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_weight, by_bias = ctx.saved_tensors
        return (
            None if by_hidden is None else by_hidden * gradient,
            None if by_weight is None else (by_weight * gradient).to(ctx.dtypes[0]),
            None if by_bias is None else (by_bias * gradient).to(ctx.dtypes[1]),
            None,
        )


def inner_head(model: Any) -> Any:
    """Return the output layer; if PEFT trains a copy of it, that copy."""
    head = model.get_output_embeddings()
    copies = getattr(head, "modules_to_save", None)
    if copies is not None:
        head = copies[head.active_adapter if isinstance(head.active_adapter, str) else head.active_adapter[0]]
    return head


def obstacle_of(model: Any, head: nn.Module | None, *, causal: bool, smoothed: bool) -> str:
    """Return why the loss cannot be computed in chunks, as the end of a sentence; empty if it can."""
    if not causal:
        return "a masked language model computes its loss itself"
    if smoothed:
        return "smoothed labels need the logits of all tokens"
    if type(head) is not nn.Linear:
        return f"the output layer is {'missing' if head is None else f'a {type(head).__name__}, not a plain nn.Linear'}"
    if "forward" in vars(head) or "forward" in vars(model.get_output_embeddings()):
        return "the output layer's forward has been replaced, as accelerate does with device_map"
    if is_deepspeed_zero3_enabled():
        return "DeepSpeed ZeRO-3 gathers the output layer's weight only inside its forward"
    if not has_same_loss(model, head):
        return "the model changes its logits before the loss, as with a soft cap"
    return ""


def has_same_loss(model: Any, head: nn.Linear) -> bool:
    """Whether eight tokens have the same loss in chunks, with logits so large that a soft cap would change it."""
    outer = model.get_output_embeddings()
    ids = torch.arange(8, device=head.weight.device)[None] % head.out_features
    tolerance = max(1e-4, 16 * torch.finfo(head.weight.dtype).eps)

    def loss_with(output_layer: Callable[[Tensor], Tensor], loss: Callable[..., Tensor]) -> float:
        with output_replaced(model, output_layer, loss), fixed_seed(0):
            return float(model.forward(input_ids=ids, labels=ids).loss)  # forward: without hooks

    with torch.no_grad(), evaluation_mode(model), suppress(Exception):  # training without chunks raises it again
        whole = loss_with(lambda hidden: type(outer).forward(outer, GROWN * hidden), model.loss_function)
        in_chunks = loss_with(lambda hidden: GROWN * hidden, partial(loss_in_chunks, head))
        return abs(in_chunks - whole) <= tolerance * abs(whole)
    return False
