"""Generators of retrieval prompts against their definitions: what is hidden, where, how often, and what fits."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.errors import BadComparison
from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import TokenizerTooPoor
from hf_posenc.eval.texts.haystack import HAYSTACKS, MOST_WORDS, most_units, sentences_of
from hf_posenc.eval.texts.passkey import passkey
from hf_posenc.eval.texts.ruler import CODE_KINDS, CommonWords, FrequentWords, Niah, Questions, VariableTracking

from .prompt_solver import BINDING, BIRTH, CODE, solve

DEPTHS = st.floats(0, 1)
SEEDS = st.integers(0, 10**6).map(str)
UNITS = st.integers(0, 60)


@given(
    seed=SEEDS, depth=DEPTHS, units=UNITS,
    haystack=st.sampled_from(HAYSTACKS), kind=st.sampled_from(sorted(CODE_KINDS)),
    counts=st.sampled_from([{}, {"distractors": 5}, {"codes": 4}, {"queries": 4}, {"queries": 3, "distractors": 2}]),
)  # fmt: skip
def test_needles(seed: str, depth: float, units: int, haystack: str, kind: str, counts: dict) -> None:
    niah = Niah(seed, depth, haystack=haystack, code_kind=kind, **counts)
    prompt = niah.prompt(units)
    assert tuple(solve(prompt)) == niah.answers
    codes = CODE.findall(prompt)
    noise = counts.get("distractors", 0) + (units if haystack == "needles" else 0)
    assert len(codes) == len(niah.answers) + noise
    assert len({value for _, value in codes}) == len(codes)  # no code is given twice
    sentences = re.findall(r"[A-Z][^.\n]*\.", prompt.split("\n")[1])
    pinned = next(n for n, text in enumerate(sentences) if niah.answers[niah.pinned] in text)
    hidden = {text for _, text in niah.needles}
    assert sum(text not in hidden for text in sentences[:pinned]) == round(depth * units)


@given(seed=SEEDS, units=UNITS, hops=st.integers(1, 8), chains=st.integers(1, 4), haystack=st.sampled_from(HAYSTACKS))
def test_chains(seed: str, units: int, hops: int, chains: int, haystack: str) -> None:
    tracing = VariableTracking(seed, hops=hops, chains=chains, haystack=haystack)
    prompt = tracing.prompt(units)
    assert tuple(solve(prompt)) == tracing.answers
    assert len(tracing.answers) == hops + 1
    bindings = BINDING.findall(prompt)
    assert len(bindings) == chains * (hops + 1) + (units if haystack == "needles" else 0)
    direct = [name for name, bound in bindings if bound == re.search(r"stand for (\d+)", tracing.question)[1]]
    assert direct == [tracing.answers[0]]  # every other name is reached by way of one before it


@given(seed=SEEDS, units=UNITS, count=st.integers(1, 12), often=st.integers(2, 30), rarely=st.integers(1, 5))
def test_common_words(seed: str, units: int, count: int, often: int, rarely: int) -> None:
    often = max(often, rarely + 1)
    words = CommonWords(seed, common_words=count, often=often, rarely=rarely)
    prompt = words.prompt(units)
    assert tuple(solve(prompt)) == words.answers
    times = Counter(re.findall(r"\d+\. (\w+)", prompt))
    assert Counter(times.values()) == Counter([often] * count + [rarely] * units)
    assert {word for word, n in times.items() if n == often} == set(words.answers)


@given(seed=SEEDS, units=UNITS, count=st.integers(1, 6), alpha=st.floats(1, 3))
def test_frequent_words(seed: str, units: int, count: int, alpha: float) -> None:
    words = FrequentWords(seed, frequent_words=count, zipf=alpha)
    prompt = words.prompt(units)
    assert tuple(solve(prompt)) == words.answers
    times = Counter(prompt.split("\n")[1].split())
    first = times[words.answers[0]]
    assert [n for _, n in times.most_common()] == [math.floor(first / r**alpha) for r in range(1, len(times) + 1)]


@given(seed=SEEDS, depth=DEPTHS, units=UNITS, hops=st.sampled_from([1, 2]))
def test_questions(seed: str, depth: float, units: int, hops: int) -> None:
    questions = Questions(seed, depth, qa_hops=hops)
    prompt = questions.prompt(units)
    assert tuple(solve(prompt)) == questions.answers
    name = re.search(r"(?:was|which) (\w+ \w+) (?:was )?born", questions.question)[1]
    documents = prompt.split("\n")[1:-1]
    (town,) = (town for person, town in BIRTH.findall(prompt) if person == name)
    assert [int(text.split()[1][:-1]) for text in documents] == list(range(1, units + hops + 1))
    person = next(n for n, text in enumerate(documents) if f"{name} was born" in text)
    river = [n for n, text in enumerate(documents) if text.split(". ")[1].startswith(f"{town} lies")]
    assert len(river) == hops - 1
    assert person - sum(n < person for n in river) == round(depth * units)
    people = [name for name, _ in BIRTH.findall(prompt)]
    assert len(set(people)) == len(people)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Niah("s", 0.5), lambda: Niah("s", 0.5, codes=4, haystack="needles"), lambda: Niah("s", 0.5, queries=3),
        lambda: VariableTracking("s", chains=3), lambda: CommonWords("s"), lambda: FrequentWords("s"),
        lambda: Questions("s", 0.5, qa_hops=2),
    ],
    ids=["single", "values", "queries", "vt", "cwe", "fwe", "qa"],
)  # fmt: skip
def test_the_answers_do_not_change_with_the_length(make) -> None:
    sizes = [0, 1, 7, 50, 400]
    together = make()
    prompts = [together.prompt(units) for units in sizes]
    if isinstance(together, (Niah, VariableTracking, CommonWords, FrequentWords, Questions)):  # the solver reads these
        assert {tuple(solve(prompt)) for prompt in prompts} == {together.answers}
    assert make().answers == together.answers
    apart = [make().prompt(units) for units in reversed(sizes)]  # whatever was asked for before
    assert prompts == apart[::-1]
    assert sorted(prompts, key=len) == prompts


def test_a_prompt_without_its_needle_cannot_be_answered() -> None:
    """Control of the reader that all these tests trust: it does not know what it has not read."""
    for whole in (Niah("s", 0.5).prompt(20), Questions("s", 0.5).prompt(20)):
        answer = solve(whole)[0]
        assert whole.count(answer) == 1
        with pytest.raises(ValueError, match="values"):
            solve(re.sub(rf"[^.\n]*\b{answer}\b[^.\n]*\.", "", whole))
    tracing = VariableTracking("s")
    with pytest.raises(AssertionError):
        solve(tracing.prompt(20).replace(f"Let {tracing.answers[1]} be ", "Let somebody be "))


@pytest.mark.slow
@given(
    start=st.integers(1, 50), steps=st.lists(st.integers(1, 40), min_size=1, max_size=30), length=st.integers(50, 2000)
)
def test_as_much_as_fits(start: int, steps: list[int], length: int) -> None:
    """Against a search one by one; the costs of units vary as wildly as they like."""
    asked = []

    def tokens(units: int) -> int:
        asked.append(units)
        return start + sum(steps[n % len(steps)] for n in range(units))

    expected = max(n for n in range(length + 1) if start + sum(steps[k % len(steps)] for k in range(n)) <= length)
    assert most_units(tokens, length, "test") == expected
    assert len(asked) <= 3 * math.log2(length + 1) + 3


def test_a_text_that_never_grows_is_refused() -> None:
    """Where a search without a bound would run for ever."""
    with pytest.raises(TokenizerTooPoor):
        most_units(lambda units: 5, 1000, "test")
    with pytest.raises(TokenizerTooPoor):
        passkey(1000, 0.5, "12345", lambda text: 5)


BOOK = "The first one. Is it the second? “Third!” Fourth of 3.5 parts.\n\nA heading without an end\n\n" + "long " * 90


def test_sentences_of_a_text() -> None:
    found = sentences_of([BOOK, "另一句。第二句。"])
    assert found[:5] == (
        "The first one.",
        "Is it the second?",
        "“Third!”",
        "Fourth of 3.5 parts.",
        "A heading without an end",
    )
    assert [len(piece.split()) for piece in found[5:10]] == [MOST_WORDS] * 4 + [10]
    assert found[10:] == ("另一句。", "第二句。")


@pytest.mark.parametrize(
    "task",
    ["posenc_niah_multiquery", "posenc_qa", "posenc_passkey"],
)
def test_needles_are_hidden_in_the_text(llama, tokenizer, tmp_path, task: str) -> None:
    (tmp_path / "book.txt").write_text("Zebras graze in the park. Owls sleep by day. Foxes walk home at dawn.")
    asked = {"tasks": [task], "lengths": [600], "keys": 2, "depths": [0.5], "log_samples": True}
    samples = evaluate(llama, tokenizer, text=tmp_path / "book.txt", **asked).raw["samples"][task]
    for sample in samples:
        assert sample["doc"]["prompts"][0].count("Owls sleep by day.") >= 2  # repeated, as the text is short
    plain = evaluate(llama, tokenizer, **asked).raw["samples"][task]
    assert all("Owls" not in sample["doc"]["prompts"][0] for sample in plain)


def test_a_text_that_the_haystack_leaves_out_is_refused(llama, tokenizer, tmp_path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    asked = {"tasks": ["posenc_niah_single"], "lengths": [500], "keys": 1, "text": tmp_path / "book.txt"}
    with pytest.raises(BadComparison, match="one of the tasks reads the text"):
        evaluate(llama, tokenizer, options={"haystack": "prose"}, **asked)
    both = {**asked, "tasks": ["posenc_niah_single", "posenc_vt"]}
    with pytest.raises(BadComparison):
        evaluate(llama, tokenizer, options={"haystack": "repeat"}, **both)
