"""Targets are the same tokens at every length, and their places a stratified sample of the text that its seed fixes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, default_text, module_text
from hf_posenc.eval.texts.sampling import SHIFTS, Tokenized, placed, strata
from hf_posenc.eval.texts.windows import clean, tokenized, windows_at

from .conftest import framing


def windows(source, tokenizer, *, count, longest, seed=0, **sizes):
    ((_, ends),) = placed([source], count, longest, seed)
    return windows_at(source, tokenizer, ends, **sizes)


SHARED = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED
@given(
    lengths=st.lists(st.integers(40, 400), min_size=1, max_size=4, unique=True).map(sorted),
    scored=st.integers(1, 32),
    count=st.integers(1, 4),
)
def test_windows_have_the_promised_sizes(tokenizer, lengths: list[int], scored: int, count: int) -> None:
    source = tokenized(tokenizer, module_text("bisect") * 4)
    found = windows(source, tokenizer, lengths=lengths, scored=scored, count=count, longest=400)
    assert len(found) == count
    for window in found:
        target = source.ids[window.end - scored : window.end]
        for length, context in zip(lengths, window.contexts, strict=True):
            joined, before = tokenizer(context + window.target)["input_ids"], tokenizer(context)["input_ids"]
            assert length - 8 <= len(joined) <= length  # a context gives way by a few tokens to a clean cut
            assert tuple(joined[-scored:]) == target
            assert joined[:-scored] == before  # lm-eval finds the same border


@SHARED
@given(
    lengths=st.lists(st.integers(40, 400), min_size=1, max_size=3, unique=True).map(sorted),
    added=st.integers(40, 400),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_length_that_is_added_changes_nothing_else(tokenizer, lengths: list[int], added: int, seed: int) -> None:
    source = tokenized(tokenizer, module_text("bisect") * 4)
    shared = {"scored": 16, "count": 3, "longest": 400, "seed": seed}
    before = windows(source, tokenizer, lengths=lengths, **shared)
    after = windows(source, tokenizer, lengths=sorted({*lengths, added}), **shared)
    place = [sorted({*lengths, added}).index(length) for length in lengths]
    assert [(w.end, w.target) for w in before] == [(w.end, w.target) for w in after]
    assert [list(w.contexts) for w in before] == [[w.contexts[index] for index in place] for w in after]


def test_special_tokens_count(tokenizer) -> None:
    """A tokenizer that puts a token in front leaves one less for the context, and no more than that.

    The expected context is found by trying every start of the text, shortest context last.
    """
    starting = framing(tokenizer, 1)
    source = tokenized(starting, module_text("bisect") * 4)
    for length in (40, 77, 100, 101, 250):
        window = windows(source, starting, lengths=[length], scored=8, count=1, longest=250)[0]
        target = source.ids[window.end - 8 : window.end]
        assert starting(window.target, add_special_tokens=False)["input_ids"] == list(target)
        fitting = None
        for start in range(window.end - length, window.end - 8):
            context = source.text[source.spans[start][0] : source.spans[window.end - 8][0]]
            whole, alone = starting(context + window.target)["input_ids"], starting(context)["input_ids"]
            assert whole[0] == 0
            if len(whole) <= length and context == context.rstrip() and whole == alone + list(target):
                fitting = context
                break
        assert window.contexts == (fitting,)


def test_a_window_moves_past_a_long_ruler(tokenizer) -> None:
    """One line of a drawn table stops no measurement: what is cut from its middle has other tokens than the whole."""
    code = module_text("bisect")
    source = tokenized(tokenizer, f"{code}{chr(0x2500) * 200}\n{code}")
    ruler = len(tokenizer(code)["input_ids"])
    place = next(end for end in range(ruler, len(source.ids)) if not any_clean(source, tokenizer, end))
    (window,) = windows_at(source, tokenizer, [place], lengths=[32], scored=8)
    assert window.end > place + SHIFTS
    assert tokenizer(window.target)["input_ids"] == list(source.ids[window.end - 8 : window.end])


def any_clean(source, tokenizer, end: int) -> bool:
    """Whether a window can be cut at one of the next places."""
    return any(clean(source, tokenizer, last - 16, last - 8, last) for last in range(end, end + SHIFTS + 1))


def test_held_out_text_is_held_out() -> None:
    assert not set(HELD_OUT) & set(TRAINING)
    assert all(module_text(name) for name in HELD_OUT)
    assert default_text().documents[0].content.startswith(module_text(HELD_OUT[0]))


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
