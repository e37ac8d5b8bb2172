"""One attention layer with a scheme: fixed random projections, no norm, and all effects of position.

It computes with the same functions as a patched model (through `hf_posenc.insight.plots.pair_scores`), but positions
and dtypes are free. Its outputs are the logits before softmax.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.insight.plots import pair_scores
from hf_posenc.insight.plots.registry import Target
from hf_posenc.schemes.base import Scheme

SEED = 0


def gaussian(*shape: int, seed: int = SEED) -> Tensor:
    """The same unit normal numbers for the same arguments, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Layer:
    """A scheme in an attention layer.

    Args:
        scheme: scheme with its geometry.
        dtype: dtype of embeddings, queries, keys and values.
        alike: whether queries and keys share one projection.
    """

    def __init__(self, scheme: Scheme, dtype: torch.dtype = torch.float64, *, alike: bool = False) -> None:
        self.scheme, self.geometry, self.dtype = scheme.to(dtype), scheme.geometry, dtype
        g = self.geometry
        query, key, value = (
            gaussian(g.width, heads, g.head_dim, seed=10 + n) / g.width**0.5
            for n, heads in enumerate((g.heads, g.kv_heads, g.kv_heads))
        )
        if alike:
            query = key.repeat_interleave(g.heads // g.kv_heads, dim=1)
        self.weights = tuple(weight.flatten(1).to(dtype) for weight in (query, key, value))
        table = None if g.table is None else (0.02 * gaussian(g.table, g.width, seed=20)).to(dtype)
        self.target = Target("", self.scheme, table, projections=self)

    def query(self, x: Tensor) -> Tensor:
        """Project ``[…, n, width]`` to queries ``[…, heads, n, head_dim]``."""
        return self._heads(x, 0)

    def key(self, x: Tensor) -> Tensor:
        """Project ``[…, n, width]`` to keys ``[…, kv_heads, n, head_dim]``."""
        return self._heads(x, 1)

    def tokens(self, count: int, contents: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs of queries with ``contents`` contents and of keys with one content, ``[contents, count, width]`` each.

        All tokens of a text are equal.
        """
        key, query = gaussian(1, 1, self.geometry.width, seed=3), gaussian(contents, 1, self.geometry.width, seed=4)
        return query.expand(-1, count, -1), key.expand(contents, count, -1)

    def code(self, positions: Tensor) -> Tensor | None:
        """Code that is added to embeddings at repositioned ``positions [batch or 1, n]``, or None without codes."""
        with torch.no_grad():
            code = self.target.added(positions)
        return None if code is None else code.to(self.dtype)

    def call(self, query: Tensor, key: Tensor, positions: Tensor, *, last: int | None = None) -> AttentionCall:
        """The attention call of tokens ``query`` and ``key``, each ``[batch, n, width]``, before codes are added.

        Args:
            query: inputs of the query projection.
            key: inputs of the key and value projections.
            positions: ``[1, n]``, ascending.
            last: number of last queries to compute; None for all.
        """
        positions = self.scheme.reposition(positions, training=False)
        code = self.code(positions)
        if code is not None:
            query, key = query + code, key + code
        ctx, (q, k) = self.target.context(positions, key), self.scheme.prepare(self.query(query), self.key(key))
        return pair_scores.attention_call(self.scheme, q, k, self._heads(key, 2), ctx, last=last)

    @torch.no_grad()
    def scores(self, query: Tensor, key: Tensor, positions: Tensor, *, last: int | None = None) -> Tensor:
        """Logits ``[batch, heads, row, n]``, −∞ for masked keys; arguments as for `call`."""
        return logits(self.call(query, key, positions, last=last))

    @torch.no_grad()
    def biases(self, query: Tensor, key: Tensor, positions: Tensor, *, last: int | None = None) -> Tensor:
        """Bias added to q · k, ``[batch, heads, row, n]``."""
        call = self.call(query, key, positions, last=last)
        return logits(call) - logits(replace(call, terms=replace(call.terms, bias=())))

    def _heads(self, x: Tensor, which: int) -> Tensor:
        return (x.to(self.dtype) @ self.weights[which]).unflatten(-1, (-1, self.geometry.head_dim)).transpose(-2, -3)


def logits(call: AttentionCall) -> Tensor:
    """Logits before softmax, ``[batch, heads, row, key]``, −∞ for masked keys."""
    return pair_scores.logits(call).masked_fill(~pair_scores.seen(call), -torch.inf)
