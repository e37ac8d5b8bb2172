"""The training mix of the laboratory models: text, strings to copy, repeated statements, and the tasks of the harness.

text        windows of the standard library's source
copy        random tokens, repeated until the row ends
statements  a few needles in random order, over and over: each repeat is an answer
tasks       prompts of the harness's own generators with their answers, from seeds that the harness does not use

Every row is `LENGTH` tokens and as many weights: the loss counts answers `ANSWER` times and prompts `PROMPT` times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.common_words import CommonWords, FrequentWords
from hf_posenc.eval.texts.needles import NEEDLE, Niah
from hf_posenc.eval.texts.questions import PERSON, TRADES, Questions
from hf_posenc.eval.texts.variable_tracking import STATEMENT, VariableTracking
from hf_posenc.eval.texts.vocabulary import CONSONANTS, VOWELS, coined, number

LENGTH = 256
VOCABULARY = 1280
SPECIAL = ("<|endoftext|>", "<pad>")
END, PAD = range(len(SPECIAL))
ANSWER, PROMPT = 5.0, 0.1
ALPHABET = 1000
"""Distinct tokens of random strings, as the harness's tasks have."""

Row = tuple[list[int], list[float]]
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
    """Byte-level BPE that reads digits one by one and invented words by syllables: keys are about equally long."""
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
    words = [f" {word} {word.capitalize()}" for word in (coined(rng) for _ in range(4000))]
    tokenizer.train_from_iterator([*texts, *prompts, *words], trainer)
    return tokenizer


@dataclass(frozen=True)
class PasskeyPrompt:
    """A passkey at a depth, in its repeated filler."""

    key: str
    depth: float

    @property
    def answers(self) -> tuple[str, ...]:
        """The key."""
        return (self.key,)

    def prompt(self, units: int) -> str:
        """The prompt with ``units`` sentences of filler."""
        before = round(self.depth * units)
        return passkey.compose(self.key, before, units - before)


def seed(rng: random.Random) -> str:
    """One that no task of the harness uses."""
    return f"laboratory-{rng.getrandbits(48)}"


def haystack(rng: random.Random) -> str:
    return rng.choice(("prose", "prose", "repeat", "needles"))


def single(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), haystack=rng.choice(("prose", "repeat")))


def multi_key(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), distractors=rng.randint(1, 4), haystack=haystack(rng))


def multi_value(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), codes=rng.randint(2, 4))


def multi_query(rng: random.Random) -> Niah:
    return Niah(seed(rng), rng.random(), queries=rng.randint(2, 4))


def tracking(rng: random.Random) -> VariableTracking:
    return VariableTracking(seed(rng), hops=rng.randint(1, 4), chains=rng.randint(1, 2))


def question(rng: random.Random) -> Questions:
    return Questions(seed(rng), rng.random(), hops=rng.choice((1, 1, 2)))


def frequent(rng: random.Random) -> FrequentWords:
    return FrequentWords(seed(rng), count=rng.randint(1, 3))


def common(rng: random.Random) -> CommonWords:
    return CommonWords(seed(rng), count=rng.randint(1, 3), often=rng.randint(3, 6))


def hidden_key(rng: random.Random) -> PasskeyPrompt:
    return PasskeyPrompt(passkey.draw_key(rng), rng.random())


TASKS: tuple[Callable[[random.Random], Any], ...] = (
    hidden_key, single, multi_key, multi_key, multi_value, multi_query, tracking, question, frequent, common,
)  # fmt: skip


def joined(answers: Sequence[str]) -> str:
    """Answers as they continue a question."""
    return "".join(f" {answer}," for answer in answers).removesuffix(",")


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


class Rows:
    """Rows of the mix; row ``n`` of a kind is the same in every run."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stream = [token for encoded in tokenizer.encode_batch(list(texts)) for token in (END, *encoded.ids)]
        self.alphabet = list(range(len(SPECIAL), len(SPECIAL) + ALPHABET))

    def row(self, rng: random.Random, progress: float) -> Row:
        """A row at a share of the training; short prompts come first, several in a row."""
        statements = 0.35 if progress < 0.2 else 0.1
        share = rng.random()
        if share < 0.22:
            return self.text(rng)
        if share < 0.37:
            return self.copy(rng)
        if share < 0.37 + statements:
            return self.statements(rng)
        return self.tasks(rng, progress)

    def text(self, rng: random.Random) -> Row:
        start = rng.randrange(len(self.stream) - LENGTH)
        return self.stream[start : start + LENGTH], [1.0] * LENGTH

    def copy(self, rng: random.Random) -> Row:
        """Random tokens and the same again; in a third of the rows of few tokens, which recur within it."""
        size = rng.randint(4, LENGTH // 2)
        alphabet = self.alphabet if rng.random() < 0.7 else rng.sample(self.alphabet, rng.randint(8, 64))
        string = [rng.choice(alphabet) for _ in range(size)]
        row = (string * (LENGTH // size + 1))[:LENGTH]
        return row, [0.0] * size + [1.0] * (LENGTH - size)

    def statements(self, rng: random.Random) -> Row:
        """A few needles, then one of them after the other at random until the row is full."""
        few = [self.tokenizer.encode(" " + statement(rng)).ids for _ in range(rng.randint(2, 6))]
        row = [END, *(token for ids in few for token in ids)]
        weights = [PROMPT] * len(row)
        while len(row) < LENGTH:
            again = rng.choice(few)
            row += again
            weights += [1.0] * len(again)
        return row[:LENGTH], weights[:LENGTH]

    def tasks(self, rng: random.Random, progress: float) -> Row:
        """Prompts with answers until the row is full; later ones take up to all of it."""
        row: list[int] = []
        weights: list[float] = []
        while (room := LENGTH - len(row)) > 60:
            longest = 80 + (LENGTH - 80) * min(1.0, progress / 0.4) * rng.random() ** 0.7
            ids, weighted = self.task(rng, min(room, int(longest) if rng.random() < 0.8 else room))
            row += ids
            weights += weighted
            if not ids:
                break
        left = LENGTH - len(row)
        start = rng.randrange(len(self.stream) - LENGTH)
        return row + self.stream[start : start + left], weights + [PROMPT] * left

    def task(self, rng: random.Random, room: int) -> Row:
        """One prompt of at most ``room`` tokens with its answer; nothing where none of a few tries fits."""
        tries = (self.answered(rng.choice(TASKS)(rng), room) for _ in range(4))
        return next((row for row in tries if row[0]), ([], []))

    def answered(self, exercise: Any, room: int) -> Row:
        """A prompt with the most filler that fits, its answer and the closing token; nothing where none fits."""
        answer = self.tokenizer.encode(joined(exercise.answers)).ids
        limit = room - len(answer) - 1
        units, prompt = 0, self.tokenizer.encode(exercise.prompt(0)).ids
        if len(prompt) > limit:
            return [], []
        step = 32
        while step:
            longer = self.tokenizer.encode(exercise.prompt(units + step)).ids
            if len(longer) <= limit:
                units, prompt = units + step, longer
            step //= 2
        return [*prompt, *answer, END], [PROMPT] * len(prompt) + [ANSWER] * len(answer) + [PROMPT]

    def batches(self, size: int, first: int, last: int, order: int) -> Iterator[list[Row]]:
        """The batches from ``first`` to before ``last``."""
        for step in range(first, last):
            rng = random.Random(f"{order}-{step}")
            yield [self.row(rng, step / last) for _ in range(size)]
