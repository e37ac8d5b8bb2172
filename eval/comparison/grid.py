"""The options that `--tune` and `hf-posenc search` try: a grid for each scheme, of its options that are named here.

Values follow from the trained length T and the factor s = length / T. Every scheme is also tried with the options it
has without tuning, so that tuning is never worse on the development text. A search has a budget, and so a finer grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import ceil, log
from typing import Any, TypeAlias

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


Grid: TypeAlias = Mapping[str, Callable[[float, int], Sequence[Any]]]
GRID: Grid = {
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
FINER: Grid = {
    **GRID,
    "window": parts_of_trained(1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8),
    "group": lambda s, trained: [ceil(multiple * s) for multiple in (1.25, 1.5, 2, 4, 8)],
    "chunk": parts_of_trained(1 / 2, 5 / 8, 3 / 4, 7 / 8, 1),
    "local": parts_of_trained(1 / 16, 1 / 8, 1 / 4, 3 / 8),
    "size": parts_of_trained(1 / 2, 3 / 4, 7 / 8, 1),
    "k": times_factor(1, 2, 4, 16),
    "sinks": lambda s, trained: [1, 4, 16],
    "n_global": lambda s, trained: [1, 4, 10, 32],
    "dca.mscale": lambda s, trained: [True],
    "beta_fast": lambda s, trained: [4.0, 8.0, 16.0, 32.0],
    "beta_slow": lambda s, trained: [0.5, 1.0, 2.0],
    "attention_factor": lambda s, trained: [round(1 + c * log(s), 4) for c in (0.0, 0.05, 0.1, 0.15)],
    "low_freq_factor": lambda s, trained: [0.5, 1.0, 2.0],
    "high_freq_factor": lambda s, trained: [4.0, 8.0],
    "llama4_temp.floor": lambda s, trained: [trained],  # no scaling within the trained length
    "llama4_temp.scale": lambda s, trained: [0.025, 0.05, 0.1],
}
"""The same for a search: more values, and more options, whose product would be too many for `--tune`. A name with a dot
is the option of one scheme, where others have an option of the same name."""
COMPOSED = (
    "rerope+logn", "rerope+llama4_temp", "leaky_rerope+logn", "self_extend+logn", "dca+logn", "dca+llama4_temp",
    "yarn+logn", "ntk_parts+logn", "ntk+logn", "ntk_parts+rerope", "ntk+rerope", "ntk_parts+self_extend",
    "ntk_parts+dca", "window+logn", "sinks+logn",
)  # fmt: skip
"""Compositions of a search besides the single schemes: a temperature on what extends, a rescaled rotation remapped."""
FACTORS = times_factor(1, 1.25, 1.5, 2)
"""Values of ``factor`` for schemes that stretch a rotation by it: `pi`, `ntk`, `yarn` and their like. The base of `ntk`
follows from it."""
PARTIAL = times_factor(1 / 6, 1 / 4, 1 / 2, 1)
"""Values of ``factor`` beside a remap, which bounds distances itself: part of the way is enough."""


def candidates(entry: Entry, factor: float, trained: int, values: Grid = GRID) -> list[Entry]:
    """The entry as it is, and with each combination of the options that its user left open.

    Args:
        entry: a scheme with options.
        factor: length to reach over the trained length.
        trained: the trained length, tokens.
        values: to try of each option.
    """
    grid = grid_of(entry, factor, trained, values)
    found = [Entry(entry.label, entry.scheme, {**entry.options, **values}) for values in combinations(grid)]
    return [entry, *found] if grid else [entry]


def grid_of(entry: Entry, factor: float, trained: int, values: Grid = GRID) -> dict[str, list[Any]]:
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
            rule = values.get(f"{cls.record.name}.{name}", values.get(name))
            if rule is not None and name not in given:
                grid[name] = distinct(rule(factor, trained))
    if not entry.lengths and any(is_stretched(cls) for cls, _ in parts):
        factors = PARTIAL if any(cls.regions is not Scheme.regions for cls, _ in parts) else FACTORS
        grid["factor"] = distinct(factors(factor, trained))
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
