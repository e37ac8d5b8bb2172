"""The options that `--tune` tries: a small grid for each scheme, of those of its options that are named here.

Values follow from the trained length T and the factor s = length / T. Every scheme is also tried with the options it
has without tuning, so that tuning is never worse on the development text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from typing import Any

from hf_posenc.errors import PosEncError
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.spec import defaults_of, plan


def parts_of_trained(*shares: float) -> Callable[[float, int], list[int]]:
    """Whole parts of the trained length."""
    return lambda s, trained: [max(1, int(share * trained)) for share in shares]


def times_factor(*multiples: float) -> Callable[[float, int], list[float]]:
    """Multiples of the factor, none below 1."""
    return lambda s, trained: [max(1.0, multiple * s) for multiple in multiples]


GRID: Mapping[str, Callable[[float, int], Sequence[Any]]] = {
    "window": parts_of_trained(1 / 8, 1 / 4, 1 / 2, 3 / 4),  # of neighbours at their true distance
    "group": lambda s, trained: [ceil(multiple * s) for multiple in (1.5, 2, 4)],
    "k": times_factor(1, 2, 4),
    "chunk": parts_of_trained(1 / 2, 3 / 4, 1),
    "local": parts_of_trained(1 / 16, 1 / 8, 1 / 4),
    "shift": parts_of_trained(1 / 4, 1 / 3, 1 / 2),
    "n_local": parts_of_trained(1 / 2, 3 / 4, 1),
    "recent": parts_of_trained(1 / 2, 3 / 4, 1),
    "size": parts_of_trained(1 / 4, 1 / 2, 3 / 4, 1),
    "multiplier": times_factor(1 / 4, 1 / 2, 1, 2),
}
"""Option to its values, given s and T."""
FACTORS = times_factor(1, 1.25, 1.5, 2)
"""Values of ``factor`` for schemes that stretch a rotation by it: `pi`, `ntk`, `yarn` and their like. The base of `ntk`
follows from it."""


def candidates(entry: Entry, factor: float, trained: int) -> list[Entry]:
    """The entry as it is, and with each combination of the options that its user left open.

    Args:
        entry: a scheme with options.
        factor: length to reach over the trained length.
        trained: the trained length, tokens.
    """
    grid = grid_of(entry, factor, trained)
    found = [Entry(entry.label, entry.scheme, {**entry.options, **values}) for values in combinations(grid)]
    return [entry, *found] if grid else [entry]


def grid_of(entry: Entry, factor: float, trained: int) -> dict[str, list[Any]]:
    """The values to try of each option that its user left open; empty for the unpatched model."""
    if entry.scheme is None:
        return {}
    try:
        parts = plan(entry.scheme, entry.own_options).parts
    except PosEncError:  # patching says why
        return {}
    grid: dict[str, list[Any]] = {}
    for cls, given in parts:
        for name in defaults_of(cls):
            if name in GRID and name not in given:
                grid[name] = distinct(GRID[name](factor, trained))
    if not entry.lengths and any(is_stretched(cls) for cls, _ in parts):
        grid["factor"] = distinct(FACTORS(factor, trained))
    return grid


def is_stretched(cls: type[Scheme]) -> bool:
    """Whether schemes of a class stretch a rotation by the factor of the patch, rather than by the length so far."""
    return cls.stretches and cls.row_rotation is Scheme.row_rotation


def combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of values, as options."""
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def distinct(values: Sequence[Any]) -> list[Any]:
    """Each value once, in order."""
    return list(dict.fromkeys(values))
