"""Places of windows: a stratified sample that covers the text, favours no part of it and is fixed by its seed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.eval.texts.sampling import SHIFTS, Tokenized, placed, strata

sizes = st.lists(st.integers(0, 3000), min_size=1, max_size=6)


def documents(sizes: list[int]) -> list[Tokenized]:
    return [Tokenized("", tuple(range(size)), (), str(number)) for number, size in enumerate(sizes)]


def flat(sources: list[Tokenized], longest: int, count: int, seed: int) -> list[int]:
    """Places as if the documents were one, without the text that no window can end in."""
    begins, total = {}, 0
    for source in sources:
        begins[source.name] = total
        total += max(0, len(source.ids) - longest - SHIFTS)
    return [
        begins[source.name] + end - longest for source, ends in placed(sources, count, longest, seed) for end in ends
    ]


@given(sizes, st.integers(1, 12), st.integers(1, 300), st.integers(0, 5))
def test_every_stratum_has_one_window(sizes: list[int], count: int, longest: int, seed: int) -> None:
    total = sum(max(0, size - longest - SHIFTS) for size in sizes)
    if total < count:
        return
    found = flat(documents(sizes), longest, count, seed)
    assert len(found) == count
    for number, place in enumerate(found):
        assert number * total // count <= place < (number + 1) * total // count
    assert found == flat(documents(sizes), longest, count, seed)


def test_no_place_is_favoured() -> None:
    """Over seeds, each of 40 places of two documents is drawn equally often, the first no more than the others."""
    sources, seeds = documents([100 + SHIFTS + 30, 100 + SHIFTS + 10, 90]), 2000
    drawn = Counter(place for seed in range(seeds) for place in flat(sources, 100, 4, seed))
    assert sorted(drawn) == list(range(40))
    expected = seeds / 10
    assert max(abs(number - expected) for number in drawn.values()) < 5 * expected**0.5
    old = Counter(100 + i * 40 // 3 for _ in range(seeds) for i in range(4))  # control: places evenly spread from 100
    assert max(old.values()) == seeds


@pytest.mark.parametrize(("size", "count"), [(7, 7), (1000, 3), (5, 1)])
def test_strata_are_equal_parts(size: int, count: int) -> None:
    lists = [strata(size, count, random.Random(seed)) for seed in range(400)]
    assert {place for found in lists for place in found} == set(range(size)) or size > 400
    assert all(found == sorted(set(found)) for found in lists)
