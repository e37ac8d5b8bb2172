"""Attention scores that a model's own forward asks for and nobody computes: what it does to them is noted instead.

A forward that computes attention inline multiplies queries by keys, scales the product, adds a mask, takes the softmax
and multiplies values by it. Under `Interception` the first product is a `PendingScores`, which takes no memory and
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
from torch.overrides import TorchFunctionMode

from hf_posenc.errors import UnsupportedModel

PRODUCTS = ("matmul", "bmm")
Attend = Callable[..., tuple[Tensor, Tensor | None]]
"""Takes queries, keys, values, a mask, and keywords ``scaling`` and ``dropout``, as transformers' functions do."""


class Interception(TorchFunctionMode):
    """While active, the first product of two batches of matrices is left pending; see the module.

    Args:
        attend: called once, with ``[batch, heads, token, head_dim]`` and a mask that broadcasts to the scores or None.
        hidden: input of the forward, ``[batch, token, width]`` or ``[batch, width, token]``.
        name: of what is intercepted, for messages.
    """

    def __init__(self, attend: Attend, hidden: Tensor, name: str) -> None:
        super().__init__()
        self.attend, self.shape, self.name = attend, hidden.shape, name
        self.started = False
        self.mixed: Tensor | None = None
        self.weights: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As of `TorchFunctionMode`."""
        if not self.started and _plain_name(func) in PRODUCTS and not kwargs and self._of_tokens(*args):
            self.started = True
            query, key = args[0], args[1].transpose(-1, -2)
            return PendingScores(self, query, key, torch.Size((*query.shape[:-1], key.shape[-2])))
        return func(*args, **(kwargs or {}))

    def _of_tokens(self, one: Any, two: Any) -> bool:
        """Whether two factors can be the queries of all tokens, and at least as many keys."""
        if not all(isinstance(x, Tensor) and x.ndim >= 3 and len(x) % self.shape[0] == 0 for x in (one, two)):
            return False
        return one.shape[-2] in self.shape[1:] and len(one) == len(two) and two.shape[-1] >= one.shape[-2]

    def times_values(self, scores: PendingScores, values: Tensor) -> Tensor:
        """What the attention function makes of noted scores, in the shape of their product with ``values``."""
        if not scores.normalised or self.mixed is not None:
            raise refused(self.name, "multiplies something else by its attention scores")
        query, key, merged = scores.query, scores.key, values.ndim == 3
        query, key, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, values))  # for kernels
        if merged:
            query, key, values = (x.unflatten(0, (self.shape[0], -1)) for x in (query, key, values))
        mixed, self.weights = self.attend(
            query, key, values, scores.mask(), scaling=scores.factor, dropout=scores.dropout
        )
        self.mixed = mixed.transpose(1, 2)
        return self.mixed.flatten(0, 1) if merged else self.mixed

    def completed(self, output: Any) -> Any:
        """The output of a forward, with the attention weights (or None) in the place of noted scores.

        Raises:
            UnsupportedModel: it contains scores before their softmax.
        """
        if isinstance(output, PendingScores):
            if not output.normalised:
                raise refused(self.name, "returns its attention scores themselves")
            return self.weights
        if isinstance(output, dict):
            return {name: self.completed(value) for name, value in output.items()}
        if isinstance(output, (tuple, list)):
            return type(output)(self.completed(value) for value in output)
        return output


@dataclass(eq=False)
class PendingScores:
    """Scores that are not computed; see the module.

    Attributes:
        interception: that they belong to.
        query: ``[…, query, head_dim]``; ``key`` likewise.
        shape: of the scores, as the forward sees them.
        factor: of q · k.
        masks: added to the scores, each broadcasts to their shape.
        dropout: probability of dropping a weight.
        normalised: whether the softmax was taken.
    """

    interception: Interception
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
        pending = next(x for x in (*args, *(kwargs or {}).values()) if isinstance(x, PendingScores))
        return pending.step(_plain_name(func))(*args, **(kwargs or {}))

    def step(self, name: str) -> Callable[..., Any]:
        """What is noted for a function of torch.

        Raises:
            UnsupportedModel: attention as it is known here has no such step.
        """
        if name not in STEPS:
            raise refused(self.interception.name, f"applies {name} to its attention scores")
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
        return self.interception.times_values(self, values)

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


def _plain_name(func: Any) -> str:
    return getattr(func, "__name__", "").strip("_")


def _times(scores: PendingScores, factor: Any) -> PendingScores:
    if not isinstance(factor, (int, float)) or scores.masks or scores.normalised:
        raise refused(scores.interception.name, "multiplies its attention scores by more than one number")
    return replace(scores, factor=scores.factor * factor)


def _plus(scores: PendingScores, mask: Any) -> PendingScores:
    if isinstance(mask, int) and mask == 0:
        return scores
    if not isinstance(mask, Tensor) or scores.normalised:
        raise refused(scores.interception.name, "adds more than a mask to its attention scores")
    return replace(scores, masks=(*scores.masks, fitting(scores, mask)))


def _add(one: Any, other: Any) -> PendingScores:
    return _plus(one, other) if isinstance(one, PendingScores) else _plus(other, one)


def _mul(one: Any, other: Any) -> PendingScores:
    return _times(one, other) if isinstance(one, PendingScores) else _times(other, one)


def fitting(scores: PendingScores, mask: Tensor) -> Tensor:
    """A mask for all of the scores.

    Raises:
        UnsupportedModel: it is shorter: a model keeps it in a buffer, which ends.
    """
    try:
        mask.expand(scores.shape)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"{scores.interception.name} has a mask of its own of shape {tuple(mask.shape)}, which does not fit its "
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
        raise refused(value.interception.name, "replaces its attention scores")
    return _masked_fill(scores, ~seen, value)


def _lowest(scores: PendingScores, value: Any) -> float:
    """What hides a key, as a number that transformers' masks have.

    Raises:
        UnsupportedModel: it does not hide it.
    """
    if float(value) > -1e3:
        raise refused(scores.interception.name, f"sets some of its attention scores to {float(value):g}")
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
        raise refused(scores.interception.name, "takes another softmax than the one over its keys")
    return replace(scores, normalised=True)


def _dropout(scores: PendingScores, p: float = 0.5, training: bool = True, inplace: bool = False) -> PendingScores:
    return replace(scores, dropout=p) if training and p else scores


def _shaped(scores: PendingScores, *shape: Any) -> PendingScores:
    sizes = shape[0] if shape and isinstance(shape[0], (tuple, list)) else shape
    found = torch.Size(torch.empty(scores.shape, device="meta").view(*sizes).shape)
    if found[-2:] != scores.shape[-2:]:
        raise refused(scores.interception.name, "takes its attention scores apart")
    return replace(scores, shape=found)


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
