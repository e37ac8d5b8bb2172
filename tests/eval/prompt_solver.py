"""Solve retrieval prompts from their text, by the definition of each task.

It shares no code with the generators, so its answers are those of a perfect model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lm_eval.api.model import LM

CODE = re.compile(r"The code of (\w+) is ([\w-]+)\.")
BINDING = re.compile(r"Let (\w+) be (\w+)\.")
BIRTH = re.compile(r"Document \d+\. (\w+ \w+) was born in (\w+) and works as a \w+\.")
RIVER = re.compile(r"Document \d+\. (\w+) lies on the river (\w+) and lives on \w+\.")


def solve(prompt: str) -> list[str]:
    """The answers to the question at the end of a prompt, in the order of the question."""
    body, question = prompt.rsplit("\n", 1)
    for pattern, solver in SOLVERS.items():
        if found := re.match(pattern, question):
            return solver(body.split("\n", 1)[1], *found.groups())
    raise AssertionError(f"no question: {question!r}")


def one_code(body: str, key: str) -> list[str]:
    (code,) = [value for name, value in CODE.findall(body) if name == key]
    return [code]


def all_codes(body: str, count: str, key: str) -> list[str]:
    codes = [value for name, value in CODE.findall(body) if name == key]
    assert len(codes) == int(count)
    return codes


def several_codes(body: str, keys: str) -> list[str]:
    return [code for key in re.split(", | and ", keys) for code in one_code(body, key)]


def names_of(body: str, count: str, value: str) -> list[str]:
    meaning: dict[str, str] = {}
    for name, bound in BINDING.findall(body):
        assert name not in meaning
        meaning[name] = meaning.get(bound, bound)  # a name that is not bound yet would stay unresolved
    names = [name for name, bound in meaning.items() if bound == value]
    assert len(names) == int(count)
    return names


def most_common(body: str, count: str) -> list[str]:
    entries = re.findall(r"(\d+)\. (\w+)", body)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    often = {word for word, _ in clear_cut(Counter(word for _, word in entries), int(count))}
    return [word for word in dict.fromkeys(word for _, word in entries) if word in often]


def most_frequent(body: str, count: str) -> list[str]:
    ranking = clear_cut(Counter(body.split()), int(count))
    assert len({times for _, times in ranking}) == len(ranking)  # no two of them tie
    return [word for word, _ in ranking]


def clear_cut(counts: Counter[str], count: int) -> list[tuple[str, int]]:
    ranking = counts.most_common()
    assert len(ranking) == count or ranking[count - 1][1] > ranking[count][1]
    return ranking[:count]


def born(body: str, name: str) -> list[str]:
    (town,) = [town for person, town in BIRTH.findall(body) if person == name]
    return [town]


def on_river(body: str, name: str) -> list[str]:
    (river,) = [river for town, river in RIVER.findall(body) if [town] == born(body, name)]
    return [river]


SOLVERS = {
    r"Which code does (\w+) have\?": one_code,
    r"Which (\d+) codes does (\w+) have\?": all_codes,
    r"Which codes do (.+?) have\?": several_codes,
    r"Which (\d+) names stand for (\d+), some of them by way of others\?": names_of,
    r"Which (\d+) words come up most often in the list\?": most_common,
    r"Which (\d+) words come up most often in the text\?": most_frequent,
    r"Where was (.+?) born\?": born,
    r"On which river lies the town in which (.+?) was born\?": on_river,
}


class Reader(LM):
    """A language model that reads prompts, and answers all of them right or all of them wrong."""

    def __init__(self, *, right: bool) -> None:
        super().__init__()
        self.right = right

    def loglikelihood(self, requests) -> list[tuple[float, bool]]:
        return [(-1.0, target == self.next(context)) for context, target in (request.args for request in requests)]

    def generate_until(self, requests) -> list[str]:
        return [", ".join(self.as_written(solve(request.args[0]))) for request in requests]

    def loglikelihood_rolling(self, requests) -> list[float]:
        raise NotImplementedError

    def next(self, context: str) -> str:
        """The text that follows a prompt and some of its answers."""
        done = context[opening(context) :].count(",")
        return f" {list(self.as_written(solve(context)))[done]}"

    def as_written(self, answers: list[str]) -> Iterator[str]:
        """The answers, or wrong ones: reversed, with an x at the end."""
        return (answer if self.right else answer[::-1] + "x" for answer in answers)


def opening(context: str) -> int:
    """Index of the end of the word before the first answer."""
    return max(context.rfind(word) + len(word) for word in (" is", " are", " in", " river"))
