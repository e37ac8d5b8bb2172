"""The arms of a search: every zero-shot scheme with its defaults, and options drawn from their grids.

    family   a scheme or composition: rerope, yarn, rerope+logn …
    arm      a family with options: rerope:window=96 …; the first arm of a family has its defaults

Grids and compositions are those of `hf_posenc.eval.comparison.grid`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, zip_longest

from hf_posenc.core.geometry import Geometry
from hf_posenc.eval.comparison.grid import COMPOSED, FINER, candidates
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.entry import Entry, entry_of
from hf_posenc.schemes.registry import list_schemes, scheme_class, scheme_record


def families(geometry: Geometry, *, all_keys: bool = False) -> list[Entry]:
    """The zero-shot schemes that can extend a model of this geometry, and compositions of them, with their defaults.

    There are none for a model with a learned position table: schemes that take its place need training.

    Args:
        geometry: of the model.
        all_keys: leave out schemes that hide or evict keys.
    """
    if geometry.table is not None:
        return []
    names = [record.name for record in list_schemes() if record.zero_shot and changes_reach(scheme_class(record.name))]
    names += COMPOSED
    return [Entry(name, name) for name in names if fits(name, geometry) and not (all_keys and hides_keys(name))]


def changes_reach(cls: type[Scheme]) -> bool:
    """Whether a scheme does more than repeat the model's own rotation."""
    return cls.stretches or not cls.replaces_host or cls.row_rotation is not Scheme.row_rotation


def fits(name: str, geometry: Geometry) -> bool:
    """Whether every part of a composition is defined on a model; what one part misses, another does not bring here."""
    return not any(scheme_record(part).unmet_needs(geometry) for part in name.split("+"))


def hides_keys(name: str) -> bool:
    """Whether a part of a composition decides which keys are seen, so that older text is lost."""
    return any(scheme_class(part).chooses_keys for part in name.split("+"))


def defaults_of(arms: Sequence[Entry]) -> list[str]:
    """Labels of the arms that are one scheme with its defaults: what others have to be clearly better than."""
    return [arm.label for arm in arms if not arm.options and "+" not in arm.label]


def drawn(found: Sequence[Entry], factor: float, trained: int, seed: int) -> list[Entry]:
    """Arms of the families besides their first ones, in random order, one of each family in turn.

    Args:
        found: the families, best first.
        factor: target over trained length.
        trained: the trained length, tokens.
        seed: of the order.
    """
    every = [shuffled(entry, factor, trained, seed) for entry in found]
    return [arm for arm in chain.from_iterable(zip_longest(*every)) if arm is not None]


def shuffled(family: Entry, factor: float, trained: int, seed: int) -> list[Entry]:
    """The candidates of a family but its first, labelled by scheme and options, in random order."""
    labelled = [entry_of((arm.scheme or "", arm.options)) for arm in candidates(family, factor, trained, FINER)[1:]]
    random.Random(f"{family.label}-{seed}").shuffle(labelled)
    return labelled
