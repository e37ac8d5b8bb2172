"""Registry of plots. A plot shows hooks of a scheme, so it works for every scheme that implements them.

@register_plot
class Mine(Plot):
    name, title, hooks, options = "mine", "What it shows", ("bias",), ("length",)

    def numbers(self, target, view): ...        # a dictionary of tensors and plain values
    def draw(self, figure, sheets): ...     # with matplotlib, one sheet per scheme
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor

from hf_posenc.core.context import PositionContext, Projections
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme, implements


class UnknownPlot(OptionOutOfRange):
    """There is no plot of that name."""


class NothingToPlot(OptionOutOfRange):
    """A plot shows hooks that the schemes do not implement."""


@dataclass(frozen=True)
class View:
    """Positions, heads and channels to show; None leaves the choice to the plot.

    Attributes:
        length: number of positions, from 0 on.
        position: the single position shown.
        head: index of a single head.
        channels: channels of the embedding, or rotation pairs.

    Raises:
        OptionOutOfRange: a field has a wrong type, or ``length`` is below 2.
    """

    length: Annotated[int, Ge(2)] | None = None
    position: int | None = None
    head: int | None = None
    channels: tuple[int, ...] | list[int] | None = None

    def __post_init__(self) -> None:
        check_fields(self, OptionOutOfRange)

    def chosen(self, count: int, default: Sequence[int]) -> list[int]:
        """Return the channels to show, out of ``count``.

        Raises:
            OptionOutOfRange: a channel does not exist.
        """
        channels = list(default if self.channels is None else self.channels)
        for channel in channels:
            if not 0 <= channel < count:
                raise OptionOutOfRange(f"channels must be among 0 … {count - 1}, got {channel}. Name others.")
        return channels

    def heads(self, count: int, most: int) -> list[int]:
        """Return the requested head, or at most ``most`` evenly spaced out of ``count``.

        Raises:
            OptionOutOfRange: the head does not exist.
        """
        if self.head is None:
            return evenly(count, most)
        if not 0 <= self.head < count:
            raise OptionOutOfRange(f"head must be among 0 … {count - 1}, got {self.head}. Name another.")
        return [self.head]


def evenly(count: int, most: int) -> list[int]:
    """Choose at most ``most`` evenly spaced indices out of ``count``, the first and the last included."""
    size = min(most, count)
    return sorted({round(n * (count - 1) / max(1, size - 1)) for n in range(size)})


@dataclass(frozen=True)
class Sheet:
    """Numbers of one scheme in a plot."""

    label: str
    numbers: Mapping[str, Any]


class Plot(ABC):
    """Base class of plots: `numbers` computes tensors and plain values, `draw` draws them.

    Class attributes:
        name: registered name.
        title: what it shows.
        hooks: the plot shows schemes that implement one of these hooks.
        companions: schemes that implement one of these hooks may be drawn beside them.
        trained_length, factor: defaults, in tokens and as extension factor.
        options: fields of `View` that `numbers` reads; others are refused.
        general: whether it shows every scheme; it is then the default only of schemes that no other plot shows.
        positions: default number of positions; None for the target length.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    hooks: ClassVar[tuple[str, ...]] = ()
    companions: ClassVar[tuple[str, ...]] = ()
    trained_length: ClassVar[int] = 64
    factor: ClassVar[float] = 1.0
    options: ClassVar[tuple[str, ...]] = ("length",)
    general: ClassVar[bool] = False
    positions: ClassVar[int | None] = None

    def shows(self, target: Target) -> bool:
        """Whether the plot shows what the scheme does. Such plots are listed, and the first is the default."""
        return self.general or target.has(*self.hooks)

    def accepts(self, target: Target) -> bool:
        """Whether the scheme can be drawn at all: beside other schemes, or if the plot is named."""
        return target.has(*self.hooks, *self.companions) or self.shows(target)

    def length(self, target: Target) -> int:
        """Default number of positions."""
        return self.positions or target.geometry.target_length

    @abstractmethod
    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        """Compute the numbers to draw, tensors and plain values; ``view.length`` is never None."""

    @abstractmethod
    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        """Draw one sheet per scheme.

        Args:
            figure: empty matplotlib figure; the plot may set its size, and its suptitle for remarks.
            sheets: what to draw.
        """


PLOTS: dict[str, Plot] = {}
"""Plots by name, in the order of registration."""

P = TypeVar("P", bound=type[Plot])


def register_plot(cls: P) -> P:
    """Register a `Plot` subclass under its name.

    Raises:
        ValueError: another plot has that name.
    """
    other = PLOTS.get(cls.name)
    if other is not None and type(other).__qualname__ != cls.__qualname__:
        raise ValueError(f"The plot name {cls.name!r} belongs to {type(other).__qualname__}. Take another name.")
    PLOTS[cls.name] = cls()
    return cls


@dataclass(frozen=True)
class Target:
    """A scheme to plot.

    Attributes:
        label: name of the scheme in the plot.
        scheme: scheme of one layer.
        table: the model's position table, ``[rows, width]``, if it has one.
        projections: projections of the layer, if there is a model.
        layer: index of the layer.
    """

    label: str
    scheme: Scheme
    table: Tensor | None = None
    projections: Projections | None = None
    layer: int = 0

    @property
    def geometry(self) -> Geometry:
        """Shapes and lengths that the scheme was built for."""
        return self.scheme.geometry

    def has(self, *hooks: str) -> bool:
        """Whether the scheme implements one of these hooks."""
        return any(implements(self.scheme, hook) for hook in hooks)

    def added(self, positions: Tensor) -> Tensor | None:
        """Return what the scheme or the model's table adds to embeddings at ``positions [1, n]``, or None."""
        code = self.scheme.embed(positions)
        if code is not None or self.table is None or (self.scheme.replaces_host and not self.scheme.keeps_table):
            return code
        return self.scheme.read_table(self.table, positions)

    def context(self, positions: Tensor, hidden: Tensor | None = None) -> PositionContext:
        """Build the context of an attention call; all tokens at ``positions [1, token]`` are queries and keys."""
        return PositionContext(
            positions, positions, causal=self.geometry.causal,
            contiguous=bool((positions.diff() == 1).all()), hidden=hidden,
            projections=self.projections, layer=None if self.projections is None else self.layer,
        )  # fmt: skip


def position_range(length: int, start: int = 0) -> Tensor:
    """Return positions ``start … start + length − 1``, ``[1, length]``."""
    return torch.arange(start, start + length)[None]
