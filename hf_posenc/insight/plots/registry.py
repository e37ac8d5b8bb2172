"""Pictures by name. A picture belongs to the hooks of a scheme, so every scheme that has them is shown by it.

@register_picture
class Mine(Picture):
    name, title, hooks = "mine", "What it shows", ("bias",)

    def numbers(self, subject, view): ...        # a dictionary of tensors and plain values
    def draw(self, figure, sheets, among): ...   # with matplotlib, one sheet a scheme
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, TypeVar

from hf_posenc.errors import OptionOutOfRange, nearest
from hf_posenc.insight.plots.pair_scores import Vectors
from hf_posenc.insight.plots.target import Target

Sweep = Literal["factor", "length", "position"]


class UnknownPlot(OptionOutOfRange):
    """No picture of that name is registered."""


class NothingToPlot(OptionOutOfRange):
    """A picture shows a hook that none of the schemes has."""


@dataclass(frozen=True)
class View:
    """What of a scheme is looked at; None leaves it to the picture.

    Attributes:
        length: positions, from ``start`` on.
        start: the first position.
        position: the one that is looked at, or from.
        head: a single head.
        channels: of the code, or pairs of a rotation.
        vectors: what queries and keys are.
    """

    length: int | None = None
    start: int = 0
    position: int | None = None
    head: int | None = None
    channels: tuple[int, ...] | None = None
    vectors: Vectors = "ones"

    def chosen(self, count: int, default: Sequence[int]) -> list[int]:
        """The channels to look at, among so many.

        Raises:
            OptionOutOfRange: one is not there.
        """
        asked = list(default if self.channels is None else self.channels)
        for channel in asked:
            if not 0 <= channel < count:
                raise OptionOutOfRange(f"channels must be among 0 … {count - 1}, got {channel}. Name others.")
        return asked

    def heads(self, count: int, most: int) -> list[int]:
        """The head asked for, or so many evenly chosen.

        Raises:
            OptionOutOfRange: it is not there.
        """
        if self.head is None:
            return evenly(count, most)
        if not 0 <= self.head < count:
            raise OptionOutOfRange(f"head must be among 0 … {count - 1}, got {self.head}. Name another.")
        return [self.head]


def evenly(count: int, most: int) -> list[int]:
    """All of so many, or so many of them from the first to the last."""
    shown = min(most, count)
    return sorted({round(n * (count - 1) / max(1, shown - 1)) for n in range(shown)})


@dataclass(frozen=True)
class Sheet:
    """The numbers behind a picture of one scheme."""

    label: str
    numbers: Mapping[str, Any]


class Plot(ABC):
    """A way of looking at schemes: numbers first, drawing after.

    Class attributes:
        name: what it is asked for by.
        title: what it shows.
        hooks: a scheme that has one of these is shown by it.
        beside: a scheme that has one of these may stand beside those.
        trained_length, factor: of the imagined host, where nothing else is asked for.
        sweep: what an animation of it changes.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    hooks: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    trained_length: ClassVar[int] = 64
    factor: ClassVar[float] = 1.0
    sweep: ClassVar[Sweep | None] = None

    def shows(self, subject: Target) -> bool:
        """Whether the scheme has what the picture shows."""
        return subject.has(*self.hooks)

    def takes(self, subject: Target) -> bool:
        """Whether it can be drawn, perhaps only beside another."""
        return self.shows(subject) or subject.has(*self.beside)

    def tells(self, subject: Target) -> bool:
        """Whether it may be chosen where no picture is asked for."""
        return self.shows(subject)

    def length(self, subject: Target) -> int:
        """Positions, where nothing else is asked for."""
        return subject.geometry.target_length

    @abstractmethod
    def numbers(self, subject: Target, view: View) -> dict[str, Any]:
        """What is drawn: tensors and plain values; ``view.length`` is never None."""

    @abstractmethod
    def draw(self, figure: Any, sheets: Sequence[Sheet], among: Sequence[Sheet]) -> None:
        """Draw one sheet a scheme.

        Args:
            figure: of matplotlib, empty; its size may be set, and its suptitle says what else there is to know.
            sheets: what to draw.
            among: all sheets that share a scale, in an animation those of all frames; none where each has its own.
        """


_PLOTS: dict[str, Plot] = {}
P = TypeVar("P", bound=type[Plot])
# In this order the first that tells something of a scheme is chosen.
KINDS = ("positions", "biases", "scores", "images", "codes", "rotations")


def register_plot(cls: P) -> P:
    """Register a `Plot` subclass under its name.

    Raises:
        ValueError: the name belongs to another picture.
    """
    other = _PLOTS.get(cls.name)
    if other is not None and type(other).__qualname__ != cls.__qualname__:
        raise ValueError(f"The picture name {cls.name!r} belongs to {type(other).__qualname__}. Take another name.")
    _PLOTS[cls.name] = cls()
    return cls


def list_plots() -> list[Plot]:
    """All pictures, in the order in which one is chosen where none is asked for."""
    for kind in KINDS:
        import_module(f"hf_posenc.insight.plots.kinds.{kind}")
    return list(_PLOTS.values())


def plot_of(name: str) -> Plot:
    """The picture of a name.

    Raises:
        UnknownPicture: there is none.
    """
    known = {picture.name: picture for picture in list_plots()}
    if name not in known:
        raise UnknownPlot(
            f"There is no picture {name!r}.{nearest(name, known)} `hf-posenc show --list` names all of them."
        )
    return known[name]
