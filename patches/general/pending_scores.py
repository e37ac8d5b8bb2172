"""Attention scores that a model's own forward asks for and nobody computes: what it does to them is noted instead.

A forward that computes attention inline multiplies queries by keys, scales the product, adds a mask, takes the softmax
and multiplies values by it. Under an `Interception` the first product is a `PendingScores`, which takes no memory and
notes each step; the product with the values calls an attention function with the queries, the keys, the scale and the
mask that were noted. A step that is none of these raises, so that nothing a model does to its scores is lost.
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
    """Scores that are not computed; see the module.

    Attributes:
        name: of the class whose scores they are, for messages.
        times_values: what their product with values is.
        query: ``[…, query, head_dim]``; ``key`` likewise.
        shape: of the scores, as the forward sees them.
        factor: of q · k.
        masks: added to the scores, each broadcasts to their shape.
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
        """Called by functions of torch that are given pending scores."""
        given = (*args, *(kwargs or {}).values())
        inside = (x for several in given if isinstance(several, (tuple, list)) for x in several)
        pending = next(x for x in (*given, *inside) if isinstance(x, PendingScores))
        return pending.step(plain_name(func))(*args, **(kwargs or {}))

    def step(self, name: str) -> Callable[..., Any]:
        """What is noted for a function of torch."""
        if name not in STEPS:
            raise refused(self.name, f"applies {name} to its attention scores")
        return STEPS[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self.step(name.strip("_")) if name != "masked_fill_" else _masked_fill_in_place, self)

    def __truediv__(self, divisor: Any) -> PendingScores:
        return _times(self, 1 / divisor)

    def __mul__(self, factor: Any) -> PendingScores:
        return _times(self, factor)

    def __add__(self, mask: Any) -> PendingScores:
        return _plus(self, mask)

    def __matmul__(self, values: Tensor) -> Tensor:
        return self.times_values(self, values)

    __rmul__, __radd__ = __mul__, __add__

    @property
    def dtype(self) -> torch.dtype:
        """Of the queries."""
        return self.query.dtype

    @property
    def device(self) -> torch.device:
        """Of the queries."""
        return self.query.device

    @property
    def ndim(self) -> int:
        """Axes of the scores."""
        return len(self.shape)

    def mask(self) -> Tensor | None:
        """The sum of what was added to the scores; one mask alone is the very tensor that was added."""
        if len(self.masks) < 2:
            return next(iter(self.masks), None)
        return sum(self.masks[1:], start=self.masks[0]).clamp(min=torch.finfo(self.dtype).min)


def refused(name: str, does: str) -> UnsupportedModel:
    """Why attention is not what can be intercepted."""
    return UnsupportedModel(
        f"{name} computes its attention itself, and {does}, which is no step of softmax attention over all keys. "
        "Write an adapter for it (see docs/add-model.md)."
    )


def plain_name(func: Any) -> str:
    """Name of a function of torch, without the underscores of operators and of what works in place."""
    return getattr(func, "__name__", "").strip("_")


def _times(scores: PendingScores, factor: Any) -> PendingScores:
    if not isinstance(factor, (int, float)) or scores.masks or scores.normalised:
        raise refused(scores.name, "multiplies its attention scores by more than one number")
    return replace(scores, factor=scores.factor * factor)


def _plus(scores: PendingScores, mask: Any) -> PendingScores:
    if isinstance(mask, int) and mask == 0:
        return scores
    if not isinstance(mask, Tensor) or scores.normalised:
        raise refused(scores.name, "adds more than a mask to its attention scores")
    return replace(scores, masks=(*scores.masks, fitting(scores, mask)))


def _add(one: Any, other: Any) -> PendingScores:
    return _plus(one, other) if isinstance(one, PendingScores) else _plus(other, one)


def _mul(one: Any, other: Any) -> PendingScores:
    return _times(one, other) if isinstance(one, PendingScores) else _times(other, one)


def fitting(scores: PendingScores, mask: Tensor) -> Tensor:
    """A mask for all of the scores."""
    try:
        mask.expand(scores.shape)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"{scores.name} has a mask of its own of shape {tuple(mask.shape)}, which does not fit its "
            f"attention scores of shape {tuple(scores.shape)}. Pass shorter texts; no scheme can change that mask."
        ) from error
    return mask


def _masked_fill(scores: PendingScores, hidden: Tensor, value: Any) -> PendingScores:
    hidden, lowest = _unexpanded(fitting(scores, hidden)), _lowest(scores, value)
    zeros = torch.zeros(hidden.shape, dtype=scores.dtype, device=hidden.device)
    return _plus(scores, zeros.masked_fill(hidden, lowest))


def _masked_fill_in_place(scores: PendingScores, hidden: Tensor, value: Any) -> PendingScores:
    scores.masks = _masked_fill(scores, hidden, value).masks
    return scores


def _where(seen: Any, scores: Any, value: Any) -> PendingScores:
    if not isinstance(scores, PendingScores):
        raise refused(value.name, "replaces its attention scores")
    return _masked_fill(scores, ~seen, value)


def _lowest(scores: PendingScores, value: Any) -> float:
    """What hides a key, as a number that transformers' masks have."""
    if float(value) > -1e3:
        raise refused(scores.name, f"sets some of its attention scores to {float(value):g}")
    return max(float(value), torch.finfo(scores.dtype).min)


def _max(scores: PendingScores, value: Any) -> PendingScores:
    """A bound from below that only keeps sums of masks finite."""
    _lowest(scores, value)
    return scores


def _unexpanded(x: Tensor) -> Tensor:
    """A tensor without the copies that `Tensor.expand` made of it."""
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


def _shaped(scores: PendingScores, *shape: Any) -> PendingScores:
    sizes = shape[0] if shape and isinstance(shape[0], (tuple, list)) else shape
    found = torch.Size(torch.empty(scores.shape, device="meta").view(*sizes).shape)
    if found[-2:] != scores.shape[-2:]:
        raise refused(scores.name, "takes its attention scores apart")
    shaped = replace(scores, shape=found)
    for mask in scores.masks:
        if mask.ndim <= len(found):  # one with an axis for heads fits the scores that had one
            fitting(shaped, mask)
    return shaped


def _as_it_is(scores: PendingScores, *_: Any, **__: Any) -> PendingScores:
    return scores


STEPS: dict[str, Callable[..., Any]] = {
    **{"mul": _mul, "div": PendingScores.__truediv__, "truediv": PendingScores.__truediv__, "add": _add},
    **{"masked_fill": _masked_fill, "where": _where, "max": _max, "maximum": _max, "softmax": _softmax},
    **{"dropout": _dropout, "matmul": PendingScores.__matmul__, "bmm": PendingScores.__matmul__},
    **{"view": _shaped, "reshape": _shaped, "expand_as": lambda x, scores: x.expand(scores.shape)},
    **dict.fromkeys(["to", "float", "type", "type_as", "contiguous"], _as_it_is),
    **{"size": lambda scores, dim=None: scores.shape if dim is None else scores.shape[dim]},
    **{"dim": lambda scores: len(scores.shape)},
}
"""By the name of a function of torch, what becomes of pending scores that are given to it."""
