"""Tasks of tiny models: every answer is checked by other means, and what is asked was not trained on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from laboratory.puzzles import BEGIN, BETWEEN, END, ZERO, Puzzle
from laboratory.task import IGNORED, Row, Task, TrainingBudget
from laboratory.tasks import TASKS, Text

from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING

BUDGET = TrainingBudget(trained=8, asked=(8, 12), steps=10, batch=4, learning_rate=1e-3)
PUZZLES = sorted(name for name, task in TASKS.items() if issubclass(task, Puzzle))


def made(name: str, seed: int = 0) -> Task:
    return TASKS[name](BUDGET, seed)


def rows_of(task: Task) -> Iterator[Row]:
    """Rows that are trained on, and rows that are asked."""
    yield from (task[index] for index in range(len(task)))
    for length in BUDGET.asked:
        asked = task.questions(length)
        yield from ({name: values[row] for name, values in asked.items()} for row in range(20))


def parted(row: Row) -> tuple[list[int], list[int]]:
    """Question and answer of a puzzle that is answered at its end."""
    scored = (row["labels"] != IGNORED).nonzero().flatten().tolist()
    assert scored == list(range(scored[0], scored[-1] + 1))
    assert torch.equal(row["labels"][scored], row["input_ids"][scored])
    return row["input_ids"][: scored[0]].tolist(), row["labels"][scored].tolist()


def listed(row: Row) -> tuple[list[int], list[int]]:
    """What stands between the marks, and the answer without the last of them."""
    question, answer = parted(row)
    assert (question[0], question[-1], answer[-1]) == (BEGIN, BETWEEN, END)
    return question[1:-1], answer[:-1]


def test_copies_are_the_string() -> None:
    for row in rows_of(made("copy")):
        string, answer = listed(row)
        assert answer == string


def test_sums_are_those_of_python() -> None:
    for row in rows_of(made("addition")):
        question, answer = listed(row)
        half = question.index(BETWEEN)
        first, second, total = (value(part) for part in (question[:half], question[half + 1 :], answer))
        assert first + second == total


def value(lowest_first: list[int]) -> int:
    """A number written in tokens, read by Python."""
    return int("".join(str(token - ZERO) for token in reversed(lowest_first)), base=2)


def test_flip_flops_read_what_was_written_last() -> None:
    for row in rows_of(made("flip_flop")):
        ids = row["input_ids"].tolist()
        words = "".join("wri"[ids[at]] + "01"[ids[at + 1] - 3] for at in range(0, len(ids), 2))
        assert words[0] == "w"
        assert words[-2] == "r"
        for at in range(0, len(words), 2):
            is_read = words[at] == "r"
            assert (row["labels"][at + 1] != IGNORED) == is_read
            if is_read:
                assert words[at + 1] == words[words.rindex("w", 0, at) + 1]
    assert (row["labels"][::2] == IGNORED).all()


def test_text_that_is_asked_is_of_other_modules() -> None:
    assert not set(TRAINING) & set(HELD_OUT)
    task = Text(BUDGET, 0)
    short, long = (task.questions(length) for length in BUDGET.asked)
    scored = min(BUDGET.asked) // 2
    assert torch.equal(short["input_ids"][:, -scored:], long["input_ids"][:, -scored:])
    assert ((short["labels"] != IGNORED).sum(-1) == scored).all()
    assert set(task.clusters(8)) <= set(HELD_OUT)
    assert len(set(task.clusters(8))) >= 4


@pytest.mark.parametrize("name", sorted(set(PUZZLES) - {"addition"}))
def test_questions_are_not_trained_on(name: str) -> None:
    task = made(name)
    trained = {tuple(task[index]["input_ids"].tolist()) for index in range(len(task))}
    asked = {tuple(row) for row in task.questions(BUDGET.trained)["input_ids"].tolist()}
    assert not trained & asked
