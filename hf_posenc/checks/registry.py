"""The checks by name, with what each needs of a case; `CHECKS` is what test suites and `check_scheme` run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Concatenate, ParamSpec

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation

P = ParamSpec("P")
Measure = Callable[Concatenate[Case, P], Deviation]


@dataclass(frozen=True)
class Check:
    """One promise.

    Attributes:
        name: short, as in the table of limits.
        measure: the function that measures a pair; its defaults are the case that `check_scheme` runs.
        causal: whether it is about decoders only.
        copies: whether it needs a second copy of the model, which `check_scheme` does not make.
        continues: whether it goes on with a text from a cache, which schemes that need the whole text refuse.
        company: whether it compares a row alone with the row among others, where schemes that draw draw anew.
        costly: whether the default test run measures it on one scheme of each kind only, and the full one on all.
        named: whether it writes the scheme's name down, which one that is not registered does not have.
        needs: a package without which the check says nothing.
    """

    name: str
    measure: Callable[..., Deviation]
    causal: bool = False
    copies: bool = False
    continues: bool = False
    company: bool = False
    costly: bool = False
    named: bool = False
    needs: str | None = None

    def applies(self, pair: Case) -> bool:
        """Whether the check says anything about this pair."""
        if (self.causal and not pair.causal) or (self.named and not pair.named):
            return False
        if self.needs is not None and find_spec(self.needs) is None:
            return False
        return not (self.continues and pair.needs_whole_text) and not (self.company and pair.randomises)

    def __call__(self, pair: Case) -> Deviation:
        """Measure a pair in the check's default case."""
        return self.measure(pair)

    def __str__(self) -> str:
        return self.name


CHECKS: dict[str, Check] = {}


def register_check(name: str, **needs: Any) -> Callable[[Measure[P]], Measure[P]]:
    """Enter a function into the book; see `Check` for the arguments."""

    def decorate(measure: Measure[P]) -> Measure[P]:
        CHECKS[name] = Check(name, measure, **needs)
        return measure

    return decorate


def applicable_checks(pair: Case, *, copies: bool = True, names: Iterable[str] | None = None) -> list[Check]:
    """The checks that say something about a pair, in the order of the book."""
    chosen = [CHECKS[name] for name in (CHECKS if names is None else names)]
    return [one for one in chosen if one.applies(pair) and (copies or not one.copies)]


def assert_passes(name: str, pair: Case) -> None:
    """Measure a check and raise where it is broken; a check that says nothing about the pair holds.

    Raises:
        AssertionError: the gap, with the place and the command that repeats it.
    """
    if CHECKS[name].applies(pair):
        gap = CHECKS[name](pair)
        if gap.failed:
            raise AssertionError(str(gap))
