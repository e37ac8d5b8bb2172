"""The training rows of the laboratory models: text, strings to copy, repeated statements, and the tasks of the harness.

text        windows of the standard library's source
copy        random tokens, repeated until the row ends
pairs       random tokens, then some of them again, each with the one that followed it
statements  a few needles in random order, over and over: each repeat is an answer
questions   several questions about one text, in the words of the tasks: more answers per row than in the tasks
links       only statements about names, and all their chains: several times as many answers again
lists       only things and their codes, asked for in the order of the text or another
people      only people and their towns
rankings    only words and how often they occur
tasks       prompts of the harness's own generators with their answers, from seeds that the harness does not use

Every row has `LENGTH` tokens (or ``length``) and a weight for each. Text and copies have weight 1. The first two tokens
of an answer, which must be chosen, have weight `CHOICE`, its other tokens `ANSWER`; pairs have `PAIR`, prompts
`PROMPT`.
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
"""Number of distinct tokens of random strings, as in the harness's tasks."""

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
"""Share of the rows of each kind; the other rows are tasks. Mixes 2 to 5 are for later stages of training."""

C, V = f"[{CONSONANTS}]", f"[{VOWELS}]"
FIRST = f"[{CONSONANTS}{CONSONANTS.upper()}]"
COINED = (
    rf" ?\b{FIRST}{V}(?={C}{V}{C}{V}{C}\b)"
    rf"|(?<=\b{FIRST}{V}){C}{V}(?={C}{V}{C}\b)"
    rf"|(?<=\b{FIRST}{V}{C}{V}){C}{V}(?={C}\b)"
    rf"|(?<=\b{FIRST}{V}{C}{V}{C}{V}){C}\b"
)
"""Pattern of the syllables of an invented word."""


def trained_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE with single digits and four syllables per invented word, so that all keys have equal length."""
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
        """Draw a row at a share ``progress`` of the training; early rows hold several short prompts."""
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
        """A random string, repeated; in 30 % of the rows from a small alphabet, so that tokens recur within it."""
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
        """A few needles, then random repetitions of them until the row is full."""
        needles = [self.tokenizer.encode(" " + statement(rng)).ids for _ in range(rng.randint(2, 6))]
        row = [END, *(token for ids in needles for token in ids)]
        weights = [PROMPT] * len(row)
        while len(row) < self.length:
            needle = rng.choice(needles)
            row += needle
            weights += [1.0] * len(needle)
        return row[: self.length], weights[: self.length]

    def questions(self, rng: random.Random) -> Row:
        """Short texts, each with all its questions in random order; of six tries, as many as fit."""
        row: list[int] = []
        weights: list[float] = []
        for _ in range(6):
            text, asked = rng.choice(QUESTIONED)(rng)
            ids = self.tokenizer.encode(text).ids
            text_weights = [PROMPT] * len(ids)
            for question, answers in rng.sample(asked, len(asked)):
                ids += (question_ids := self.tokenizer.encode(question).ids)
                text_weights += [PROMPT] * len(question_ids)
                answer_ids, answer_weights = self.weighed(answers)
                ids += answer_ids
                text_weights += answer_weights
            if len(row) + len(ids) < self.length:
                row += [*ids, END]
                weights += [*text_weights, PROMPT]
        return self.filled(row, weights, rng)

    def terse(self, draw: Callable[[random.Random], tuple[str, list[Asked]]], rng: random.Random) -> Row:
        """One text for every `LENGTH` tokens, with short forms of all questions about it and their answers."""
        row: list[int] = []
        weights: list[float] = []
        for _ in range(self.length // LENGTH):
            ids, text_weights = self.with_answers(*draw(rng))
            row += ids
            weights += text_weights
        return self.filled(row[: self.length], weights[: self.length], rng)

    def rankings(self, rng: random.Random) -> Row:
        """As many rankings as fit."""
        row: list[int] = []
        weights: list[float] = []
        while True:
            ids, text_weights = self.with_answers(*ranking(rng))
            if len(row) + len(ids) > self.length:
                return self.filled(row, weights, rng)
            row += ids
            weights += text_weights

    def with_answers(self, text: str, asked: Sequence[Asked]) -> Row:
        """A text, then questions with their answers; each answer ends with a full stop."""
        row = [END, *self.tokenizer.encode(" " + text).ids]
        weights = [PROMPT] * len(row)
        for question, answers in asked:
            ids, (answer, answer_weights) = self.tokenizer.encode(question).ids, self.weighed(answers)
            row += [*ids, *answer, *self.tokenizer.encode(".").ids]
            weights += [PROMPT] * len(ids) + answer_weights + [ANSWER]
        return row, weights

    def filled(self, row: list[int], weights: list[float], rng: random.Random) -> Row:
        """Fill the rest of a row with text."""
        left = self.length - len(row)
        start = rng.randrange(len(self.stream) - self.length)
        return row + self.stream[start : start + left], weights + [PROMPT] * left

    def tasks(self, rng: random.Random, progress: float) -> Row:
        """Prompts with answers until the row is full; later in training, a prompt may fill the whole row."""
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
        """One prompt of at most ``room`` tokens with its answer; empty if none of four tries fits."""
        tries = (self.answered(rng.choice(TASKS)(rng), room) for _ in range(4))
        return next((row for row in tries if row[0]), ([], []))

    def weighed(self, answers: Sequence[str]) -> Row:
        """Answers as they continue a question; the first tokens of each must be chosen, the others only copied."""
        ids: list[int] = []
        weights: list[float] = []
        for answer in answers:
            if ids:
                ids += self.tokenizer.encode(",").ids
                weights.append(ANSWER)
            answer_ids = self.tokenizer.encode(f" {answer}").ids
            ids += answer_ids
            weights += [CHOICE] * 2 + [ANSWER] * (len(answer_ids) - 2)
        return ids, weights

    def answered(self, exercise: Any, room: int) -> Row:
        """A prompt with as much filler as fits, its answer and the end token; empty if the prompt does not fit."""
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
        """Yield the batches from ``first`` to before ``last``."""
        for step in range(first, last):
            rng = random.Random(f"{order}-{step}")
            progress = step / last if short_first else 1.0
            yield [self.row(rng, progress) for _ in range(size)]
