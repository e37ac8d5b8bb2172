"""Intercept inline attention: replace the score computation of a model's own forward by an attention function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hf_posenc.patches.general.pending_scores import PendingScores, function_name, refused

PRODUCTS = ("matmul", "bmm")
Attend = Callable[..., tuple[Tensor, Tensor | None]]
"""Takes queries, keys, values, a mask, and keywords ``scaling`` and ``dropout``, as transformers' functions do."""


class Interception(TorchFunctionMode):
    """Mode in which the first product of queries and keys returns `PendingScores` instead of scores.

    Args:
        attend: called once, with ``[batch, heads, token, head_dim]`` and a mask that broadcasts to the scores or None.
        hidden: input of the forward, ``[batch, token, width]`` or ``[batch, width, token]``.
        name: name of the attention class, for error messages.
    """

    def __init__(self, attend: Attend, hidden: Tensor, name: str) -> None:
        super().__init__()
        self.attend, self.shape, self.name = attend, hidden.shape, name
        self.started = False
        self.mixed: Tensor | None = None
        self.weights: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return pending scores for the product of queries and keys; run every other function."""
        if not self.started and function_name(func) in PRODUCTS and not kwargs and self._are_query_and_key(*args):
            self.started = True
            query, key = args[0], args[1].transpose(-1, -2)
            shape = torch.Size((*query.shape[:-1], key.shape[-2]))
            return PendingScores(self.name, self.times_values, query, key, shape)
        return func(*args, **(kwargs or {}))

    def _are_query_and_key(self, query: Any, key: Any) -> bool:
        """Whether two factors can be the queries of all tokens and the transposed keys, at least as many."""
        rows = self.shape[0]  # by `shape`: `len` would fix the number of rows of a traced graph
        if not all(isinstance(x, Tensor) and x.ndim >= 3 and x.shape[0] % rows == 0 for x in (query, key)):
            return False
        has_tokens = query.shape[-2] in self.shape[1:] and key.shape[-1] >= query.shape[-2]
        return has_tokens and query.shape[0] == key.shape[0]

    def times_values(self, scores: PendingScores, values: Tensor) -> Tensor:
        """Output of the attention function for the recorded scores, in the shape of their product with ``values``."""
        if not scores.normalised or self.mixed is not None:
            raise refused(self.name, "multiplies something else by its attention scores")
        query, key, heads_in_batch = scores.query, scores.key, values.ndim == 3
        query, key, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, values))  # for kernels
        if heads_in_batch:
            query, key, values = (x.unflatten(0, (self.shape[0], -1)) for x in (query, key, values))
        mixed, self.weights = self.attend(
            query, key, values, scores.mask(), scaling=scores.factor, dropout=scores.dropout
        )
        self.mixed = mixed.transpose(1, 2)
        return self.mixed.flatten(0, 1) if heads_in_batch else self.mixed

    def with_weights(self, output: Any) -> Any:
        """The output of a forward, with the attention weights (or None) instead of pending scores."""
        if isinstance(output, PendingScores):
            if not output.normalised:
                raise refused(self.name, "returns its attention scores themselves")
            return self.weights
        if isinstance(output, dict):
            return {name: self.with_weights(value) for name, value in output.items()}
        if isinstance(output, (tuple, list)):
            return type(output)(self.with_weights(value) for value in output)
        return output
