"""Train a tiny model: AdamW, linear warmup, cosine schedule, clipped gradients.

A model of this size takes as long for a step as `transformers.Trainer` does around it, so the loop is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

import torch
from torch import nn
from transformers import PreTrainedModel

from lab.from_scratch.task import Row, Task, stacked

WARMUP = 0.1
"""Share of the steps before the peak of the learning rate."""
LARGEST_NORM = 1.0
"""Norm that gradients are clipped to."""
REPORT_EVERY = 10
"""Steps between calls of the progress function."""


def train(model: PreTrainedModel, task: Task, seed: int, progress: Callable[[float, float], None]) -> None:
    """Train all weights of a model, in place, on the rows of a task in their order.

    Args:
        model: in training mode or not; in evaluation mode afterwards.
        task: whose budget says how many steps, and how many rows a step.
        seed: of what a scheme draws in training, such as random positions.
        progress: called with the completed fraction and the loss of a step.
    """
    budget = task.budget
    optimiser = torch.optim.AdamW(model.parameters(), lr=budget.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: share_of_peak(step / budget.steps))
    torch.manual_seed(seed)
    model.train()
    for step in range(budget.steps):
        loss = model(**batch_of(task, step)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % REPORT_EVERY == 0:
            progress(step / budget.steps, loss.item())
    model.eval()


def batch_of(task: Task, step: int) -> Row:
    """The rows of one step, ``[row, token]``: the same for every scheme."""
    first = step * task.budget.batch
    return stacked([task[index] for index in range(first, first + task.budget.batch)])


def share_of_peak(done: float) -> float:
    """Learning rate after a fraction of the steps, as a share of its peak."""
    return (done + 1e-3) / WARMUP if done < WARMUP else (1 + cos(pi * (done - WARMUP) / (1 - WARMUP))) / 2
