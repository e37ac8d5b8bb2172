"""Exercises for the laboratory models: the tasks of the harness, and short texts with several questions each.

All invented words and numbers come from seeds that the harness does not use.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.haystack import coined, listed, number, sentence
from hf_posenc.eval.texts.ruler import (
    DOCUMENT,
    FREQUENT,
    GOODS,
    NAMES,
    NEEDLE,
    ONE,
    ONE_HOP,
    PERSON,
    QUERIES,
    STATEMENT,
    TEXT_INTRO,
    TOWN,
    TRADES,
    TWO_HOPS,
    VALUES,
    CommonWords,
    FrequentWords,
    Niah,
    Questions,
    VariableTracking,
)


def seed(rng: random.Random) -> str:
    """A seed that no task of the harness uses."""
    return f"laboratory-{rng.getrandbits(48)}"


def haystack(rng: random.Random) -> str:
    return rng.choice(("prose", "prose", "repeat", "needles"))


def single(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), haystack=rng.choice(("prose", "repeat")))


def multi_key(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), distractors=rng.randint(1, 4), haystack=haystack(rng))


def multi_value(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), codes=rng.choice((2, 3, 4, 4)))


def multi_query(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), queries=rng.choice((2, 3, 4, 4, 4, 4)))


def tracking(rng: random.Random) -> VariableTracking:
    return VariableTracking(seed(rng), hops=rng.randint(1, 4), chains=rng.randint(1, 2))


def question(rng: random.Random) -> Questions:
    return Questions(seed(rng), rng.random(), qa_hops=rng.choice((1, 1, 2)))


def frequent(rng: random.Random) -> FrequentWords:
    return FrequentWords(seed(rng), frequent_words=rng.randint(1, 3))


def common(rng: random.Random) -> CommonWords:
    return CommonWords(seed(rng), common_words=rng.randint(1, 3), often=rng.randint(3, 6))


def hidden_key(rng: random.Random) -> passkey.Passkey:
    return passkey.Passkey(passkey.draw_key(rng), rng.random())


TASKS: tuple[Callable[[random.Random], Any], ...] = (
    hidden_key, single, multi_key, multi_key, multi_value, multi_query, multi_query, tracking, tracking, question,
    question, frequent, frequent, common,
)  # fmt: skip


def statement(rng: random.Random) -> str:
    """A needle of any task."""
    kind = rng.randrange(4)
    if kind == 0:
        return NEEDLE.format(key=coined(rng), value=number(rng))
    if kind == 1:
        return STATEMENT.format(name=coined(rng), value=rng.choice((coined, number))(rng))
    if kind == 2:
        name = f"{coined(rng).capitalize()} {coined(rng).capitalize()}"
        return PERSON.format(name=name, town=coined(rng).capitalize(), trade=rng.choice(TRADES))
    what, _, _ = passkey.NEEDLE.partition(" is ")
    return f"{what} of {coined(rng)} is {passkey.draw_key(rng)}."


Asked = tuple[str, list[str]]
"""A question, up to the place where its answer begins, and the answers."""

MOST_LINKS, MOST_CODES = 13, 8  # a row has room for so many with their answers


def codes(rng: random.Random) -> tuple[str, list[Asked]]:
    """Things with one or several codes, and questions about one thing, several things, and all codes of a thing."""
    counts = [rng.choice((1, 1, 1, 2, 3, 4)) for _ in range(rng.randint(1, 4))]
    owned = {coined(rng): [number(rng) for _ in range(count)] for count in counts}
    needles = [NEEDLE.format(key=key, value=value) for key, values in owned.items() for value in values]
    rng.shuffle(needles)
    mixed = needles + [sentence(rng) for _ in range(rng.choice((0, 0, 1, 2, 4)))]
    rng.shuffle(mixed)
    text = " ".join(mixed)
    owned = {key: sorted(values, key=text.index) for key, values in owned.items()}
    alone = [key for key, values in owned.items() if len(values) == 1]
    together = rng.sample(alone, rng.randint(2, len(alone))) if len(alone) > 1 and rng.random() < 0.7 else []
    asked = [
        (ONE.format(key=key) if len(values) == 1 else VALUES.format(count=len(values), key=key), values)
        for key, values in owned.items()
        if key not in together
    ]
    if together:
        asked.append((QUERIES.format(keys=listed(together)), [owned[key][0] for key in together]))
    return text, asked


def chains(rng: random.Random) -> tuple[str, list[Asked]]:
    """Chains of names, and a question for each number: which names stand for it?"""
    links = [[number(rng), *(coined(rng) for _ in range(rng.randint(1, 4)))] for _ in range(rng.randint(1, 2))]
    placed = []
    for chain in links:
        places = sorted(rng.random() for _ in chain[1:])
        statements = [STATEMENT.format(name=name, value=value) for value, name in pairwise(chain)]
        placed += list(zip(places, statements, strict=True))
    placed += [(rng.random(), sentence(rng)) for _ in range(rng.choice((0, 0, 1, 3)))]
    asked = [(NAMES.format(count=len(names), value=value), names) for value, *names in links]
    return " ".join(text for _, text in sorted(placed)), asked


def lives(rng: random.Random) -> tuple[str, list[Asked]]:
    """People and their towns, and questions that need one document or two."""
    people = [[coined(rng).capitalize() for _ in range(4)] for _ in range(rng.randint(1, 3))]
    documents, asked = [], []
    for first, last, town, river in people:
        name = f"{first} {last}"
        documents.append(PERSON.format(name=name, town=town, trade=rng.choice(TRADES)))
        asked.append((ONE_HOP.format(name=name), [town]))
        if rng.random() < 0.5:
            documents.append(TOWN.format(town=town, river=river, goods=rng.choice(GOODS)))
            asked.append((TWO_HOPS.format(name=name), [river]))
    rng.shuffle(documents)
    return "\n".join(DOCUMENT.format(number=i, text=text) for i, text in enumerate(documents, 1)), asked


def orders(rng: random.Random) -> tuple[str, list[Asked]]:
    """Things with one code each, and questions about several of them in different orders."""
    keys = [coined(rng) for _ in range(rng.choice((2, 2, 3, 3, 4, 4)))]
    owned = {key: number(rng) for key in keys}
    mixed = [NEEDLE.format(key=key, value=value) for key, value in owned.items()]
    rng.shuffle(mixed)
    for _ in range(rng.choice((0, 0, 1, 2))):
        mixed.insert(rng.randrange(len(mixed) + 1), sentence(rng))
    asked = []
    for _ in range(3 if len(keys) < 4 else 2):
        chosen = rng.sample(keys, rng.randint(2, len(keys)))
        asked.append((QUERIES.format(keys=listed(chosen)), [owned[key] for key in chosen]))
    return " ".join(mixed), asked


def counts(rng: random.Random) -> tuple[str, list[Asked]]:
    """A few words with decreasing frequencies, and a question about the most frequent ones."""
    words = [coined(rng) for _ in range(rng.randint(3, 5))]
    often = sorted(rng.sample(range(1, 10), len(words)), reverse=True)
    if rng.random() < 0.5:  # as in the task
        often = sorted({max(1, int(rng.randint(16, 29) / rank**2)) for rank in range(1, 5)}, reverse=True)
        words = [coined(rng) for _ in often]
    mixed = [word for word, times in zip(words, often, strict=True) for _ in range(times)]
    rng.shuffle(mixed)
    count = rng.randint(2, min(4, len(words)))
    intro = TEXT_INTRO if rng.random() < 0.5 else ""
    return intro + " ".join(mixed), [(FREQUENT.format(count=count), words[:count])]


def links(rng: random.Random) -> tuple[str, list[Asked]]:
    """Links of chains of names in random order; then each chain, starting from its first name."""
    chains = [[coined(rng) for _ in range(rng.randint(2, 6))] for _ in range(rng.randint(2, 5))]
    stated = [link for chain in chains for link in pairwise(chain)][:MOST_LINKS]
    rng.shuffle(stated)
    text = " ".join(STATEMENT.format(name=name, value=value) for value, name in stated)
    asked = []
    for chain in rng.sample(chains, len(chains)):
        if named := [name for value, name in pairwise(chain) if (value, name) in stated]:
            asked.append((f" {chain[0]},", named))
    return text, asked


def lists(rng: random.Random) -> tuple[str, list[Asked]]:
    """Things with one code each, or some with several; then their codes.

    Several codes of one thing are in the order of the text, those of a group of things in the order of the group.
    """
    several = rng.random() < 0.4
    counts = [rng.choice((1, 1, 1, 1, 2, 3, 4)) if several else 1 for _ in range(MOST_CODES)]
    owned = {coined(rng): [number(rng) for _ in range(count)] for count in counts}
    stated = [(key, value) for key, values in owned.items() for value in values][:MOST_CODES]
    rng.shuffle(stated)
    text = " ".join(NEEDLE.format(key=key, value=value) for key, value in stated)
    owned = {key: [value for other, value in stated if other == key] for key, _ in stated}
    alone = [key for key, values in owned.items() if len(values) == 1]
    rng.shuffle(alone)
    groups = [[key] for key, values in owned.items() if len(values) > 1]
    while alone:
        size = rng.choice((1, 2, 3, 4, 4))
        groups.append(alone[:size])
        del alone[:size]
    rng.shuffle(groups)
    return text, [(f" {', '.join(group)}:", [value for key in group for value in owned[key]]) for group in groups]


def people(rng: random.Random) -> tuple[str, list[Asked]]:
    """People and where they were born; then the town of each person, in another order."""
    born = [(f"{coined(rng).capitalize()} {coined(rng).capitalize()}", coined(rng).capitalize()) for _ in range(7)]
    text = " ".join(f"{name} was born in {town}." for name, town in born)
    return text, [(f" {name}:", [town]) for name, town in rng.sample(born, len(born))]


def ranking(rng: random.Random) -> tuple[str, list[Asked]]:
    """A few words with decreasing frequencies; then the words, from the most frequent down."""
    if rng.random() < 0.35:  # as in the task
        first = rng.randint(21, 30)
        often = [first // rank**2 for rank in range(1, 5)]
    else:
        often = sorted(rng.sample((1, 2, 3, 4, 5, 7, 9), rng.randint(2, 4)), reverse=True)
    words = [coined(rng) for _ in often]
    mixed = [word for word, times in zip(words, often, strict=True) for _ in range(times)]
    rng.shuffle(mixed)
    return " ".join(mixed), [(":", words)]


Texts = tuple[Callable[[random.Random], tuple[str, list[Asked]]], ...]
QUESTIONED: Texts = (*4 * (codes,), *3 * (orders,), *2 * (chains,), *2 * (lives,), *3 * (counts,))
