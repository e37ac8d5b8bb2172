"""Train tiny GPT-2s from the same random weights that differ only in their positional scheme, and measure them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import cos, pi
from typing import Any

import torch
from laboratory.task import Task, TrainingBudget, stacked
from laboratory.tasks import TASKS
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from verdict import Score, Scores

from hf_posenc import patch_model
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.entry import Entry, entries_of

HEADS, WARMUP, ROWS = 4, 0.1, 16  # rows of one forward pass


def from_scratch(
    scheme: str,
    points: Sequence[float],
    seed: int,
    *,
    tasks: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, tuple[str, str]],
) -> Iterator[tuple[float, Scores]]:
    """Train one scheme (``"sinusoidal:scale=learned"``) with one seed on all tasks, then score it at every point.

    A point is a length in multiples of the trained length. ``tasks`` maps names in `TASKS` to settings of a
    `TrainingBudget`. ``scores`` maps each metric of the finding to a task and one of its scores.
    """
    trained = {}
    for name, settings in tasks.items():
        budget = TrainingBudget(**settings, asked=tuple(round(at * settings["trained"]) for at in points))
        task = TASKS[name](budget, seed)
        model = tiny_model(task, entries_of(scheme)[0], seed)
        train(model, task, seed)
        trained[name] = model, task
    for at in points:
        by_task = {
            name: scored(model, task, round(at * task.budget.trained)) for name, (model, task) in trained.items()
        }
        yield at, {metric: by_task[name][score] for metric, (name, score) in scores.items()}


def tiny_model(task: Task, entry: Entry, seed: int) -> PreTrainedModel:
    """Build a GPT-2 for a task, with random weights, and patch it.

    GPT-2's own weights are drawn before the scheme adds its parameters, so they are equal for all schemes. The target
    length is the longest measured length, if the scheme can reach beyond the trained one.
    """
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=task.vocabulary, n_embd=task.budget.width, n_layer=task.budget.layers, n_head=HEADS,
            n_positions=task.longest, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            use_cache=False,
        )
    )  # fmt: skip
    model.loss_type = "ForCausalLM"  # transformers would choose the same, with a warning
    if entry.scheme is None:
        return model
    try:
        return patch_model(model, entry.scheme, target_length=task.longest_asked, **entry.options)
    except OptionOutOfRange:  # the scheme ends at the trained length, or an option is wrong and is refused again
        return patch_model(model, entry.scheme, **entry.options)


def train(model: PreTrainedModel, task: Task, seed: int) -> None:
    """Train all weights on the rows of a task in their order: AdamW, warmup, cosine schedule, clipped gradients.

    For models of this size, `transformers.Trainer` would double the time of a step, so the loop is written out.
    """
    budget = task.budget
    optimiser = torch.optim.AdamW(model.parameters(), lr=budget.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: share_of_peak(step / budget.steps))
    torch.manual_seed(seed)  # for schemes that draw in training, such as random positions
    model.train()
    for first in range(0, len(task), budget.batch):
        model(**stacked([task[index] for index in range(first, first + budget.batch)])).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.eval()


def share_of_peak(done: float) -> float:
    """Learning rate as a share of its peak, after a fraction ``done`` of the steps."""
    return (done + 1e-3) / WARMUP if done < WARMUP else (1 + cos(pi * (done - WARMUP) / (1 - WARMUP))) / 2


def scored(model: PreTrainedModel, task: Task, length: int) -> dict[str, list[Score]]:
    """Scores of all questions of one length, by metric."""
    rows, clusters = task.questions(length), task.clusters(length)
    scores = task.scores(answers(model, rows["input_ids"])[:, :-1], rows["labels"][:, 1:])
    return {
        metric: [Score(str(number), clusters[number], value) for number, value in enumerate(values.tolist())]
        for metric, values in scores.items()
    }


@torch.no_grad()
def answers(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of every token, ``[row, token, vocabulary]``, float32; random schemes draw the same in every call."""
    with fixed_seed(0):
        return torch.cat([model(input_ids=part).logits.float() for part in ids.split(ROWS)])
