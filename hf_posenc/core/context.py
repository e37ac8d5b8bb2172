"""Positions of the queries and keys of one attention call (`PositionContext`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from hf_posenc.core.constants import constant, exact_dtype
from hf_posenc.core.tracing import has_dynamic_length, is_captured, is_traced
from hf_posenc.errors import FractionalPosition, PositionOutOfTable

T = TypeVar("T")


class Projections(Protocol):
    """A layer's own projections, for schemes that project vectors of their own with them (DeBERTa)."""

    def query(self, x: Tensor) -> Tensor:
        """``[n, width]`` to ``[heads, n, head_dim]``."""

    def key(self, x: Tensor) -> Tensor:
        """``[n, width]`` to ``[kv_heads, n, head_dim]``."""


@dataclass(frozen=True)
class PositionContext:
    """Call → scheme: positions, counted on real tokens, of one attention call.

    Attributes:
        query_positions: ``[batch or 1, query]``, int64; float32 where a recipe, as ``cape`` in training, makes them
            fractional, which `check_table_rows` refuses.
        key_positions: ``[batch or 1, key]``, likewise; keys of padding have some position and are masked.
        causal: whether a query sees only keys at or before it.
        contiguous: both are consecutive, without gaps or padding, and the queries are the last of the keys; then the
            call is a plain (rectangular) triangle and the fast routes apply.
        real_keys: ``[batch, key]`` bool, false at padding; None where all are real.
        memo: values shared by all layers of one forward pass.
        hidden: input of the layer's attention, ``[batch, query, width]``; None outside a model.
        extra_key_channels: what `Scheme.extra_key_channels` stored with every key, cached ones included,
            ``[batch, kv_heads, key, channels]``, float32.
        projections: the layer's own; None outside a model.
        layer: number of the layer, for a shared scheme with parameters for each; None outside a model.
        coordinates: of each query where the caller gave several, ``[batch or 1, query, axes]``.
        remapped: whether distances are those of regions; then no bias may depend on the key alone.
        kept: values of this layer that live as long as its KV cache (`with_cache`); None where nothing is kept.
        first: position of the first query, where the positions of all samples are consecutive from it and it is known
            without a device synchronisation; else None.
        text_keys: number of keys of each query's text, ``[batch or 1, query]``, where an attention mask keeps several
            texts in the rows of an encoder apart; else None.
    """

    query_positions: Tensor
    key_positions: Tensor
    causal: bool
    contiguous: bool
    real_keys: Tensor | None = None
    memo: dict[Hashable, object] = field(default_factory=dict, repr=False, compare=False)
    hidden: Tensor | None = field(default=None, repr=False, compare=False)
    extra_key_channels: Tensor | None = field(default=None, repr=False, compare=False)
    projections: Projections | None = field(default=None, repr=False, compare=False)
    layer: int | None = None
    coordinates: Tensor | None = None
    remapped: bool = False
    first: int | None = None
    kept: dict[Hashable, object] | None = field(default=None, repr=False, compare=False)
    text_keys: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Device of the positions."""
        return self.query_positions.device

    @property
    def steady(self) -> bool:
        """Whether distances are consecutive and their number is known; then a bias is a skewed view of a table."""
        if not self.contiguous or self.remapped:
            return False
        return not has_dynamic_length(self.query_positions.shape[1], self.key_positions.shape[1])

    @property
    def ahead(self) -> int:
        """Number of keys before the first query, where the queries are the last of the keys."""
        return self.key_positions.shape[1] - self.query_positions.shape[1]

    @property
    def first_key(self) -> int | None:
        """Position of the first key, where the others follow in steps of one and a CPU knows it; else None."""
        positions = self.key_positions
        if not self.contiguous or positions.is_floating_point():
            return None
        if self.first is not None:
            return self.first + self.query_positions.shape[1] - positions.shape[1]
        return int(positions[0, 0]) if positions.device.type == "cpu" and positions.shape[0] == 1 else None

    def constant(self, values: tuple[float, ...]) -> Tensor:
        """Python numbers as a float32 tensor on the right device, made once per forward pass."""
        return self.once(("constant", values), partial(constant, values, torch.float32, self.device))

    def exact(self, values: Tensor) -> Tensor:
        """Cast to float64, or to float32 where the device has no float64."""
        return values.to(exact_dtype(self.device))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """``make()``, computed by the first layer that asks and shared with the others.

        Only for values without gradient: the graph of one layer must not run through another.
        """
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]  # type: ignore[return-value]

    def with_cache(self, key: Hashable, make: Callable[[], T]) -> T:
        """``make()``, computed once for a text that is continued in a KV cache; each time where nothing is kept.

        Only for values that depend on nothing but weights.
        """
        if self.kept is None:
            return make()
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]  # type: ignore[return-value]

    def distance(self, rows: slice = slice(None)) -> Tensor:
        """Query position minus key position, ``[batch or 1, rows, key]``."""
        return self.query_positions[:, rows, None] - self.key_positions[:, None, :]


def check_table_rows(positions: Tensor, end: int | None, name: str) -> None:
    """Refuse positions past a table's end before an indexing kernel meets them.

    Raises:
        FractionalPosition: they are not integers.
        PositionOutOfTable: some position is ``end`` or more.
    """
    if positions.is_floating_point():
        raise FractionalPosition(
            f"Scheme {name!r} has integer positions only, and a recipe such as cape makes them fractional. "
            'Use one that is a function of position, such as "sinusoidal" or "rope", or another recipe.'
        )
    if end is None or positions.numel() == 0 or is_traced() or is_captured(positions):
        return
    highest = int(positions.max())
    if highest >= end:
        raise PositionOutOfTable(
            f"Position {highest} is past the {end} positions of scheme {name!r}. "
            "Shorten the input, or patch the model with a scheme without a limit."
        )
