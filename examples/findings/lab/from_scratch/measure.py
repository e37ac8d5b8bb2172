"""Measure a variant that is a scheme of tiny models: train a model for each task from random weights, then score it.

A variant is an entry in words, ``"rope"`` or ``"sinusoidal:scale=learned"``; a point of the axis is a length in
multiples of the trained one. The seed is that of initial weights and training rows; questions are the same for all
schemes and seeds. Options of the budget:

    tasks       name in `TASKS` → settings of its `TrainingBudget`
    scores      name of a metric of the finding → [task, score of the task]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.core.random_state import drawn_from
from hf_posenc.schemes.entry import entries_of
from lab.cells import DocumentScore, Scores
from lab.finding import Job
from lab.from_scratch.budget import TrainingBudget
from lab.from_scratch.catalogue import TASKS
from lab.from_scratch.model import tiny_model
from lab.from_scratch.task import Task
from lab.from_scratch.training import train

ROWS = 16
"""Questions of one forward pass."""


def measure_cells(job: Job) -> Iterator[tuple[float, Scores]]:
    """Train one scheme with one seed on all tasks of a finding, then score it at every point of a job."""
    trained = {name: trained_model(job, name, number) for number, name in enumerate(job.options["tasks"])}
    for at in job.points:
        found = {name: documents(model, task, length_at(at, task)) for name, (model, task) in trained.items()}
        yield at, {metric: found[name][score] for metric, (name, score) in job.options["scores"].items()}


def trained_model(job: Job, name: str, number: int) -> tuple[PreTrainedModel, Task]:
    """Train a fresh model on a task, the ``number``-th of the job."""
    task = TASKS[name](budget_of(job.options["tasks"][name], job.axis), job.seed)
    (entry,) = entries_of(job.settings)
    model, count = tiny_model(task, entry, job.seed), len(job.options["tasks"])
    train(
        model, task, job.seed,
        lambda done, loss: job.progress((number + done) / count, f"{name}, seed {job.seed}, loss {loss:.2f}"),
    )  # fmt: skip
    return model, task


def budget_of(settings: Mapping[str, Any], axis: tuple[float, ...]) -> TrainingBudget:
    """The budget of a task: its settings, and as lengths to measure all points of the axis."""
    return TrainingBudget(**settings, asked=tuple(round(at * settings["trained"]) for at in axis))


def length_at(at: float, task: Task) -> int:
    """The length that a point of the axis is."""
    return round(at * task.budget.trained)


def documents(model: PreTrainedModel, task: Task, length: int) -> dict[str, list[DocumentScore]]:
    """Scores of all questions of one length, by metric."""
    rows, clusters = task.questions(length), task.clusters(length)
    scores = task.scores(answers(model, rows["input_ids"])[:, :-1], rows["labels"][:, 1:])
    return {
        metric: [
            DocumentScore(str(number), cluster, value)
            for number, (cluster, value) in enumerate(zip(clusters, values.tolist(), strict=True))
        ]
        for metric, values in scores.items()
    }


@torch.no_grad()
def answers(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of every token, ``[row, token, vocabulary]``, float32; what a scheme draws is the same in every call."""
    with drawn_from(0):
        return torch.cat([model(input_ids=part).logits.float() for part in ids.split(ROWS)])
