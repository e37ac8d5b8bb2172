"""The book of laws: every law by name, with what it needs of a pair. `LAWS` is what suites and `check` go through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Concatenate, ParamSpec

from hf_posenc.checks.case import Pair
from hf_posenc.checks.deviation import Gap

P = ParamSpec("P")
Measure = Callable[Concatenate[Pair, P], Gap]


@dataclass(frozen=True)
class Law:
    """One promise.

    Attributes:
        name: short, as in the table of limits.
        measure: the function that measures a pair; its defaults are the case that `check` runs.
        causal: whether it is about decoders only.
        copies: whether it needs a second copy of the model, which `check` does not make.
        continues: whether it goes on with a text from a cache, which schemes that need the whole text refuse.
        company: whether it compares a row alone with the row among others, where schemes that draw draw anew.
        costly: whether the default test run measures it on one scheme of each kind only, and the full one on all.
        named: whether it writes the scheme's name down, which one that is not registered does not have.
        needs: a package without which the law says nothing.
    """

    name: str
    measure: Callable[..., Gap]
    causal: bool = False
    copies: bool = False
    continues: bool = False
    company: bool = False
    costly: bool = False
    named: bool = False
    needs: str | None = None

    def applies(self, pair: Pair) -> bool:
        """Whether the law says anything about this pair."""
        if (self.causal and not pair.causal) or (self.named and not pair.named):
            return False
        if self.needs is not None and find_spec(self.needs) is None:
            return False
        return not (self.continues and pair.needs_whole_text) and not (self.company and pair.randomises)

    def __call__(self, pair: Pair) -> Gap:
        """Measure a pair in the law's default case."""
        return self.measure(pair)

    def __str__(self) -> str:
        return self.name


LAWS: dict[str, Law] = {}


def law(name: str, **needs: Any) -> Callable[[Measure[P]], Measure[P]]:
    """Enter a function into the book; see `Law` for the arguments."""

    def decorate(measure: Measure[P]) -> Measure[P]:
        LAWS[name] = Law(name, measure, **needs)
        return measure

    return decorate


def applicable(pair: Pair, *, copies: bool = True, names: Iterable[str] | None = None) -> list[Law]:
    """The laws that say something about a pair, in the order of the book."""
    chosen = [LAWS[name] for name in (LAWS if names is None else names)]
    return [one for one in chosen if one.applies(pair) and (copies or not one.copies)]


def assert_holds(name: str, pair: Pair) -> None:
    """Measure a law and raise where it is broken; a law that says nothing about the pair holds.

    Raises:
        AssertionError: the gap, with the place and the command that repeats it.
    """
    if LAWS[name].applies(pair):
        gap = LAWS[name](pair)
        if gap.broken:
            raise AssertionError(str(gap))
