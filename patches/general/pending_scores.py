"""Lazy attention scores: record what a model's forward does to its scores instead of computing them.

A forward that computes attention inline multiplies queries by keys, scales the product, adds a mask, takes the softmax
and multiplies it by the values. Under an `Interception` the first product is a `PendingScores`. It takes no memory and
records each step. The product with the values calls an attention function with the recorded queries, keys, scale and
mask. Any other step raises, so no operation on the scores is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_posenc.errors import UnsupportedModel


@dataclass(eq=False)
class PendingScores:
    """Attention scores that are recorded and not computed.

    Attributes:
        name: name of the attention class, for error messages.
        times_values: function that computes the product of the softmax weights and the values.
        query: ``[…, query, head_dim]``.
        key: ``[…, key, head_dim]``.
        shape: shape of the scores as the forward sees them.
        factor: factor of q · k.
        masks: tensors added to the scores; each broadcasts to their shape.
        dropout: probability of dropping a weight.
        normalised: whether the softmax was taken.
    """

    name: str
    times_values: Callable[[PendingScores, Tensor], Tensor]
    query: Tensor
    key: Tensor
    shape: torch.Size
    factor: float = 1.0
    masks: tuple[Tensor, ...] = field(default_factory=tuple)
    dropout: float = 0.0
    normalised: bool = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a torch function that is called with pending scores."""
        arguments = (*args, *(kwargs or {}).values())
        nested = (x for sequence in arguments if isinstance(sequence, (tuple, list)) for x in sequence)
        pending = next(x for x in (*arguments, *nested) if isinstance(x, PendingScores))
        return pending.step(function_name(func))(*args, **(kwargs or {}))

    def step(self, name: str) -> Callable[..., Any]:
        """The function of `STEPS` that records the torch function ``name``."""
        if name not in STEPS:
            raise refused(self.name, f"applies {name} to its attention scores")
        return STEPS[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        step = self.step(name.strip("_"))
        return partial(_in_place, step, self) if name.endswith("_") else partial(step, self)

    def __truediv__(self, divisor: Any) -> PendingScores:
        return self * (1 / divisor)

    def __mul__(self, factor: Any) -> PendingScores:
        if not isinstance(factor, (int, float)) or self.masks or self.normalised:
            raise refused(self.name, "multiplies its attention scores by more than one number")
        return replace(self, factor=self.factor * factor)

    def __add__(self, mask: Any) -> PendingScores:
        if isinstance(mask, int) and mask == 0:
            return self
        if not isinstance(mask, Tensor) or self.normalised:
            raise refused(self.name, "adds more than a mask to its attention scores")
        return replace(self, masks=(*self.masks, checked_mask(self, mask)))

    def __matmul__(self, values: Tensor) -> Tensor:
        return self.times_values(self, values)

    __rmul__, __radd__ = __mul__, __add__

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the queries."""
        return self.query.dtype

    @property
    def device(self) -> torch.device:
        """Device of the queries."""
        return self.query.device

    @property
    def ndim(self) -> int:
        """Number of axes of the scores."""
        return len(self.shape)

    def mask(self) -> Tensor | None:
        """Sum of the recorded masks, or None; a single mask is returned as the same tensor."""
        if len(self.masks) < 2:
            return next(iter(self.masks), None)
        return sum(self.masks[1:], start=self.masks[0]).clamp(min=torch.finfo(self.dtype).min)


def refused(name: str, does: str) -> UnsupportedModel:
    """The error for attention that cannot be intercepted; ``does`` is the step that prevents it."""
    return UnsupportedModel(
        f"{name} computes its attention itself, and {does}, which is not a step of softmax attention over all keys. "
        "Write an adapter for it (see docs/add-model.md)."
    )


def function_name(func: Any) -> str:
    """Name of a torch function without the underscores of operators and in-place functions."""
    return getattr(func, "__name__", "").strip("_")


def _add(one: Any, other: Any) -> PendingScores:
    return one + other if isinstance(one, PendingScores) else other + one


def _mul(one: Any, other: Any) -> PendingScores:
    return one * other if isinstance(one, PendingScores) else other * one


def _in_place(step: Callable[..., PendingScores], scores: PendingScores, *args: Any, **kwargs: Any) -> PendingScores:
    """Record a step of an in-place method, such as `Tensor.masked_fill_`, in ``scores`` itself."""
    vars(scores).update(vars(step(scores, *args, **kwargs)))
    return scores


def checked_mask(scores: PendingScores, mask: Tensor) -> Tensor:
    """The mask itself, after a check that it broadcasts to the scores.

    Raises:
        UnsupportedModel: the mask has another shape, so the model made it for a fixed text length.
    """
    try:
        mask.expand(scores.shape)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"{scores.name} has a mask of its own of shape {tuple(mask.shape)}, which does not fit its "
            f"attention scores of shape {tuple(scores.shape)}. Pass shorter texts; no scheme can change that mask."
        ) from error
    return mask


def _masked_fill(scores: PendingScores, hidden: Tensor, value: Any) -> PendingScores:
    hidden, lowest = _without_expansion(checked_mask(scores, hidden)), _fill_value(scores, value)
    zeros = torch.zeros(hidden.shape, dtype=scores.dtype, device=hidden.device)
    return scores + zeros.masked_fill(hidden, lowest)


def _where(seen: Any, scores: Any, value: Any) -> PendingScores:
    if not isinstance(scores, PendingScores):
        raise refused(value.name, "replaces its attention scores")
    return _masked_fill(scores, ~seen, value)


def _fill_value(scores: PendingScores, value: Any) -> float:
    """The fill value of a mask, at least the lowest finite number of the dtype, as in the masks of transformers."""
    if float(value) > -1e3:
        raise refused(scores.name, f"sets some of its attention scores to {float(value):g}")
    return max(float(value), torch.finfo(scores.dtype).min)


def _max(scores: PendingScores, value: Any) -> PendingScores:
    """Ignore a lower bound of the scores, which only keeps sums of masks finite."""
    _fill_value(scores, value)
    return scores


def _without_expansion(x: Tensor) -> Tensor:
    """Undo `Tensor.expand`: narrow each expanded axis (stride 0) to one element."""
    for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if size > 1 and stride == 0:
            x = x.narrow(axis, 0, 1)
    return x


def _softmax(scores: PendingScores, dim: int | None = -1, *_: Any, **__: Any) -> PendingScores:
    if dim not in (-1, scores.ndim - 1) or scores.normalised:
        raise refused(scores.name, "takes a softmax over something other than its keys")
    return replace(scores, normalised=True)


def _dropout(scores: PendingScores, p: float = 0.5, training: bool = True, inplace: bool = False) -> PendingScores:
    return replace(scores, dropout=p) if training and p else scores


def _reshaped(scores: PendingScores, *shape: Any) -> PendingScores:
    sizes = shape[0] if shape and isinstance(shape[0], (tuple, list)) else shape
    shape_after = torch.Size(torch.empty(scores.shape, device="meta").view(*sizes).shape)
    if shape_after[-2:] != scores.shape[-2:]:
        raise refused(scores.name, "splits or merges the query or key axis of its attention scores")
    shaped = replace(scores, shape=shape_after)
    for mask in scores.masks:
        if mask.ndim <= len(shape_after):  # a mask with a heads axis fits the earlier scores, which had one too
            checked_mask(shaped, mask)
    return shaped


def _unchanged(scores: PendingScores, *_: Any, **__: Any) -> PendingScores:
    return scores


STEPS: dict[str, Callable[..., Any]] = {
    "mul": _mul, "div": PendingScores.__truediv__, "truediv": PendingScores.__truediv__, "add": _add,
    "masked_fill": _masked_fill, "where": _where, "max": _max, "maximum": _max,
    "softmax": _softmax, "dropout": _dropout, "matmul": PendingScores.__matmul__, "bmm": PendingScores.__matmul__,
    "view": _reshaped, "reshape": _reshaped, "expand_as": lambda x, scores: x.expand(scores.shape),
    "to": _unchanged, "float": _unchanged, "type": _unchanged, "type_as": _unchanged, "contiguous": _unchanged,
    "size": lambda scores, dim=None: scores.shape if dim is None else scores.shape[dim],
    "dim": lambda scores: len(scores.shape),
}  # fmt: skip
"""Functions that record an operation on pending scores, by the name of the torch function."""
