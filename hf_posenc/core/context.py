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
from hf_posenc.errors import PositionOutOfTable

T = TypeVar("T")


class Projections(Protocol):
    """A layer's query and key projections, for schemes that project their own vectors with them (DeBERTa)."""

    def query(self, x: Tensor) -> Tensor:
        """Project ``[n, width]`` to queries ``[heads, n, head_dim]``."""

    def key(self, x: Tensor) -> Tensor:
        """Project ``[n, width]`` to keys ``[kv_heads, n, head_dim]``."""


@dataclass(frozen=True)
class PositionContext:
    """Positions of one attention call, counted over real tokens, and other inputs of a scheme.

    Attributes:
        query_positions: ``[batch or 1, query]``, int64; float32 if a recipe (``cape`` in training) makes positions
            fractional, which a scheme with `whole_positions` does not get.
        key_positions: ``[batch or 1, key]``, same dtype; keys of padding have arbitrary positions and are masked.
        causal: whether a query sees only keys at or before it.
        contiguous: whether both are consecutive, without gaps or padding, and the queries are the last keys. Fast
            routes need this.
        real_keys: ``[batch, key]`` bool, false at padding; None if all keys are real.
        memo: values shared by all layers of one forward pass.
        hidden: input of the layer's attention, ``[batch, query, width]``; None outside a model.
        extra_key_channels: values that `Scheme.extra_key_channels` stored with every key, cached ones included,
            ``[batch, kv_heads, key, channels]``, float32.
        projections: the layer's query and key projections; None outside a model.
        layer: number of the layer, for a shared scheme with parameters per layer; None outside a model.
        coordinates: coordinates of each query, ``[batch or 1, query, axes]``, if the caller passed several axes.
        remapped: whether regions have remapped the positions; then no bias may depend on the key alone.
        kept: values of this layer that live as long as its KV cache (`once_per_text`); None if nothing is kept.
        first: position of the first query, if positions of all samples are consecutive from it and it is known
            without a device synchronisation; else None.
        text_keys: number of keys in each query's text, ``[batch or 1, query]``, if a mask separates several texts in
            the rows of an encoder; else None.
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
        """Whether distances are consecutive and their number is known: then a bias is a skewed view of a table."""
        if not self.contiguous or self.remapped:
            return False
        return not has_dynamic_length(self.query_positions.shape[1], self.key_positions.shape[1])

    @property
    def ahead(self) -> int:
        """Number of keys before the first query, if the queries are the last keys."""
        return self.key_positions.shape[1] - self.query_positions.shape[1]

    @property
    def first_key(self) -> int | None:
        """Position of the first key, if positions run in steps of one and it is known without waiting; else None."""
        positions = self.key_positions
        if not self.contiguous or positions.is_floating_point():
            return None
        if self.first is not None:
            return self.first + self.query_positions.shape[1] - positions.shape[1]
        return int(positions[0, 0]) if positions.device.type == "cpu" and positions.shape[0] == 1 else None

    def constant(self, values: tuple[float, ...]) -> Tensor:
        """Python numbers as a float32 tensor on the device of the positions, made once per forward pass."""
        return self.once(("constant", values), partial(constant, values, torch.float32, self.device))

    def exact(self, values: Tensor) -> Tensor:
        """Cast to float64, or to float32 if the device has no float64."""
        return values.to(exact_dtype(self.device))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Result of ``make()``, computed once per forward pass and shared by its layers.

        Only for values without gradient: the graph of one layer must not run through another.
        """
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]  # type: ignore[return-value]

    def once_per_text(self, key: Hashable, make: Callable[[], T]) -> T:
        """Result of ``make()``, computed once for a text in a KV cache; without kept values, on every call.

        Only for values that depend on weights alone.
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
    """Refuse positions past a table's end before an indexing kernel meets them; raises `PositionOutOfTable`."""
    if end is None or positions.numel() == 0 or is_traced() or is_captured(positions):
        return
    highest = int(positions.max())
    if highest >= end:
        raise PositionOutOfTable(
            f"Position {highest} is past the {end} positions of scheme {name!r}. "
            "Shorten the input, or patch the model with a scheme without a limit."
        )
