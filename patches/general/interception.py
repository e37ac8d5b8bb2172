"""Leave the attention scores of a model's own forward pending, and call an attention function in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hf_posenc.patches.general.pending_scores import PendingScores, plain_name, refused

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
        """Called by every function of torch while the mode is active."""
        if not self.started and plain_name(func) in PRODUCTS and not kwargs and self._of_tokens(*args):
            self.started = True
            query, key = args[0], args[1].transpose(-1, -2)
            shape = torch.Size((*query.shape[:-1], key.shape[-2]))
            return PendingScores(self.name, self.times_values, query, key, shape)
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
        """The output of a forward, with the attention weights (or None) in the place of noted scores."""
        if isinstance(output, PendingScores):
            if not output.normalised:
                raise refused(self.name, "returns its attention scores themselves")
            return self.weights
        if isinstance(output, dict):
            return {name: self.completed(value) for name, value in output.items()}
        if isinstance(output, (tuple, list)):
            return type(output)(self.completed(value) for value in output)
        return output
