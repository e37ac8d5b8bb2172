"""The training rows of the laboratory models: text, strings to copy, repeated statements, and the tasks of the harness.

text        windows of the standard library's source
copy        random tokens, repeated until the row ends
pairs       random tokens, then some of them again, each with the one that followed it
statements  a few needles in random order, over and over: each repeat is an answer
questions   several questions about one text, in the words of the tasks: more answers a row than the tasks have
links       statements about names and nothing else, and all their chains: several times as many answers again
lists       the same of things and their codes, in the order asked or in that of the text
people      the same of people and their towns
rankings    the same of words and how often they come
tasks       prompts of the harness's own generators with their answers, from seeds that the harness does not use

Every row is `LENGTH` tokens, or as many as are asked for, and as many weights: the loss counts text and copies once,
the first two tokens of an answer, which must be chosen, `CHOICE` times, the rest of it `ANSWER` times, pairs `PAIR`
times, and prompts `PROMPT` times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from laboratory_texts import QUESTIONED, TASKS, Asked, links, lists, people, ranking, statement
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hf_posenc.eval.texts.haystack import CONSONANTS, VOWELS, coined

LENGTH = 256
VOCABULARY = 1536
SPECIAL = ("<|endoftext|>", "<pad>")
END, PAD = range(len(SPECIAL))
CHOICE, ANSWER, PAIR, PROMPT = 10.0, 5.0, 3.0, 0.1
ALPHABET = 1000
"""Distinct tokens of random strings, as the harness's tasks have."""

Row = tuple[list[int], list[float]]

MIXES = {
    1: {"text": 0.17, "copy": 0.06, "pairs": 0.05, "statements": 0.05, "links": 0.1, "questions": 0.35},
    2: {
        "text": 0.14, "copy": 0.06, "pairs": 0.08, "statements": 0.02, "links": 0.05, "lists": 0.24, "rankings": 0.07,
        "questions": 0.16,
    },
    3: {
        "text": 0.14, "copy": 0.06, "pairs": 0.07, "statements": 0.02, "links": 0.03, "lists": 0.08, "rankings": 0.04,
        "questions": 0.26,
    },
    4: {
        "text": 0.12, "copy": 0.04, "pairs": 0.1, "statements": 0.01, "links": 0.02, "lists": 0.14, "rankings": 0.1,
        "people": 0.07, "questions": 0.12,
    },
    5: {
        "text": 0.12, "copy": 0.05, "pairs": 0.05, "statements": 0.01, "links": 0.02, "lists": 0.24, "rankings": 0.12,
        "people": 0.03, "questions": 0.12,
    },
}  # fmt: skip
"""Which share of the rows is of each kind, the rest being tasks. The later ones are for trainings that go on."""

C, V = f"[{CONSONANTS}]", f"[{VOWELS}]"
FIRST = f"[{CONSONANTS}{CONSONANTS.upper()}]"
COINED = (
    rf" ?\b{FIRST}{V}(?={C}{V}{C}{V}{C}\b)"
    rf"|(?<=\b{FIRST}{V}){C}{V}(?={C}{V}{C}\b)"
    rf"|(?<=\b{FIRST}{V}{C}{V}){C}{V}(?={C}\b)"
    rf"|(?<=\b{FIRST}{V}{C}{V}{C}{V}){C}\b"
)
"""The syllables of an invented word."""


def trained_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE that reads digits one by one and invented words as four syllables: all keys are equally long."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(COINED), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    rng = random.Random(0)
    prompts = [draw(rng).prompt(rng.randrange(20)) for draw in TASKS for _ in range(300)]
    words = [f" {word} {word.capitalize()}" for word in (coined(rng) for _ in range(30_000))]
    tokenizer.train_from_iterator([*texts, *prompts, *words], trainer)
    return tokenizer


class Rows:
    """Rows of the mix; row ``n`` of a kind is the same in every run."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], mix: dict[str, float], length: int = LENGTH) -> None:
        self.tokenizer, self.mix, self.length = tokenizer, mix, length
        self.stream = [token for encoded in tokenizer.encode_batch(list(texts)) for token in (END, *encoded.ids)]
        self.alphabet = list(range(len(SPECIAL), len(SPECIAL) + ALPHABET))
        self.kinds: dict[str, Callable[[random.Random], Row]] = {
            "text": self.text, "copy": self.copy, "pairs": self.pairs, "statements": self.statements,
            "questions": self.questions, "links": partial(self.terse, links), "lists": partial(self.terse, lists),
            "rankings": self.rankings, "people": partial(self.terse, people),
        }  # fmt: skip

    def row(self, rng: random.Random, progress: float) -> Row:
        """A row at a share of the training; short prompts come first, several in a row."""
        shares = self.mix | ({"statements": 0.25} if progress < 0.15 else {})
        share = rng.random()
        for kind, of_rows in shares.items():
            if share < of_rows:
                return self.kinds[kind](rng)
            share -= of_rows
        return self.tasks(rng, progress)

    def text(self, rng: random.Random) -> Row:
        start = rng.randrange(len(self.stream) - self.length)
        return self.stream[start : start + self.length], [1.0] * self.length

    def copy(self, rng: random.Random) -> Row:
        """Random tokens and the same again; in a third of the rows of few tokens, which recur within it."""
        size = rng.randint(4, self.length // 2)
        alphabet = self.alphabet if rng.random() < 0.7 else rng.sample(self.alphabet, rng.randint(8, 64))
        string = [rng.choice(alphabet) for _ in range(size)]
        row = (string * (self.length // size + 1))[: self.length]
        return row, [0.0] * size + [1.0] * (self.length - size)

    def pairs(self, rng: random.Random) -> Row:
        """Random tokens, then some of them again, each with the one that followed it."""
        size = rng.randint(8, self.length - 16)
        row = rng.sample(self.alphabet, size)
        weights = [0.0] * size
        while len(row) < self.length:
            place = rng.randrange(size - 1)
            row += row[place : place + 2]
            weights += [0.0, PAIR]
        return row[: self.length], weights[: self.length]

    def statements(self, rng: random.Random) -> Row:
        """A few needles, then one of them after the other at random until the row is full."""
        few = [self.tokenizer.encode(" " + statement(rng)).ids for _ in range(rng.randint(2, 6))]
        row = [END, *(token for ids in few for token in ids)]
        weights = [PROMPT] * len(row)
        while len(row) < self.length:
            again = rng.choice(few)
            row += again
            weights += [1.0] * len(again)
        return row[: self.length], weights[: self.length]

    def questions(self, rng: random.Random) -> Row:
        """Short texts, each with all its questions in random order, as many as fit of a few tries."""
        row: list[int] = []
        weights: list[float] = []
        for _ in range(6):
            text, asked = rng.choice(QUESTIONED)(rng)
            ids = self.tokenizer.encode(text).ids
            counted = [PROMPT] * len(ids)
            for question, answers in rng.sample(asked, len(asked)):
                ids += (more := self.tokenizer.encode(question).ids)
                counted += [PROMPT] * len(more)
                more, weighed = self.weighed(answers)
                ids += more
                counted += weighed
            if len(row) + len(ids) < self.length:
                row += [*ids, END]
                weights += [*counted, PROMPT]
        return self.filled(row, weights, rng)

    def terse(self, draw: Callable[[random.Random], tuple[str, list[Asked]]], rng: random.Random) -> Row:
        """A text for every `LENGTH` tokens, of which it takes most, and all that can be asked about it, in a word."""
        row: list[int] = []
        weights: list[float] = []
        for _ in range(self.length // LENGTH):
            ids, counted = self.with_answers(*draw(rng))
            row += ids
            weights += counted
        return self.filled(row[: self.length], weights[: self.length], rng)

    def rankings(self, rng: random.Random) -> Row:
        """As many rankings as fit."""
        row: list[int] = []
        weights: list[float] = []
        while True:
            ids, counted = self.with_answers(*ranking(rng))
            if len(row) + len(ids) > self.length:
                return self.filled(row, weights, rng)
            row += ids
            weights += counted

    def with_answers(self, text: str, asked: Sequence[Asked]) -> Row:
        """A text, and questions with their answers, each up to a full stop."""
        row = [END, *self.tokenizer.encode(" " + text).ids]
        weights = [PROMPT] * len(row)
        for question, answers in asked:
            ids, (answer, counted) = self.tokenizer.encode(question).ids, self.weighed(answers)
            row += [*ids, *answer, *self.tokenizer.encode(".").ids]
            weights += [PROMPT] * len(ids) + counted + [ANSWER]
        return row, weights

    def filled(self, row: list[int], weights: list[float], rng: random.Random) -> Row:
        """A row with text in what is left of it."""
        left = self.length - len(row)
        start = rng.randrange(len(self.stream) - self.length)
        return row + self.stream[start : start + left], weights + [PROMPT] * left

    def tasks(self, rng: random.Random, progress: float) -> Row:
        """Prompts with answers until the row is full; later ones take up to all of it."""
        row: list[int] = []
        weights: list[float] = []
        while (room := self.length - len(row)) > 60:
            longest = 80 + (self.length - 80) * min(1.0, progress / 0.4) * rng.random() ** 0.7
            ids, weighted = self.task(rng, min(room, int(longest) if rng.random() < 0.8 else room))
            row += ids
            weights += weighted
            if not ids:
                break
        return self.filled(row, weights, rng)

    def task(self, rng: random.Random, room: int) -> Row:
        """One prompt of at most ``room`` tokens with its answer; nothing where none of a few tries fits."""
        tries = (self.answered(rng.choice(TASKS)(rng), room) for _ in range(4))
        return next((row for row in tries if row[0]), ([], []))

    def weighed(self, answers: Sequence[str]) -> Row:
        """Answers as they continue a question; where one begins, what it is must be chosen, and the rest copied."""
        ids: list[int] = []
        weights: list[float] = []
        for answer in answers:
            if ids:
                ids += self.tokenizer.encode(",").ids
                weights.append(ANSWER)
            more = self.tokenizer.encode(f" {answer}").ids
            ids += more
            weights += [CHOICE] * 2 + [ANSWER] * (len(more) - 2)
        return ids, weights

    def answered(self, exercise: Any, room: int) -> Row:
        """A prompt with the most filler that fits, its answer and the closing token; nothing where none fits."""
        answer, weights = self.weighed(exercise.answers)
        limit = room - len(answer) - 1
        units, prompt = 0, self.tokenizer.encode(exercise.prompt(0)).ids
        if len(prompt) > limit:
            return [], []
        step = max(32, room // 8)
        while step:
            longer = self.tokenizer.encode(exercise.prompt(units + step)).ids
            if len(longer) <= limit:
                units, prompt = units + step, longer
            step //= 2
        return [*prompt, *answer, END], [PROMPT] * len(prompt) + weights + [PROMPT]

    def batches(self, size: int, first: int, last: int, order: int, *, short_first: bool = True) -> Iterator[list[Row]]:
        """The batches from ``first`` to before ``last``."""
        for step in range(first, last):
            rng = random.Random(f"{order}-{step}")
            progress = step / last if short_first else 1.0
            yield [self.row(rng, progress) for _ in range(size)]
