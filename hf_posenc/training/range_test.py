"""Learning-rate range test: train some steps at exponentially rising rates, and find the rates that lower the loss.

The loss varies more between rows than a few dozen steps of fine-tuning lower it. Each row is therefore read twice:
first by the original model, then by the model in training.

    difference[t] = loss of the trained model on the rows of step t  −  loss of the original model on these rows

The differences are smoothed by an exponential moving average. Smith's largest usable rate is where the loss stops
falling and begins to rise. Here it is the last rate before the average rises from its lowest value back to 0. A tenth
of it is suggested as the peak of a run, because a run stays near its peak for many steps, and the test for one.

Smith 2015, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, takewhile
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from hf_posenc.errors import TrainingImpossible
from hf_posenc.training.config import Training
from hf_posenc.training.finetune import Texts, finetune
from hf_posenc.training.rows import HeldOutSplit, count_of
from hf_posenc.training.run_inputs import read_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STEPS, LOWEST, HIGHEST = 50, 1e-6, 1.0
MEMORY = 0.8  # decay of the moving average per step
BELOW = 10  # the suggested rate is the highest usable one divided by this
DIVERGED = 1.0  # nats/token that the loss may rise before the test ends


@dataclass(frozen=True)
class RangeTest:
    """Result of a learning-rate range test, step by step; the test ends early if the loss diverges.

    Attributes:
        rates: learning rate of each step, rising.
        differences: loss minus loss of the original model on the rows of each step, nats/token.
        smoothed: moving average of the differences.
        suggested: suggested peak learning rate; None if no rate lowered the loss.
    """

    rates: tuple[float, ...]
    differences: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggested: float | None

    @classmethod
    def of(cls, rates: list[float], before: list[float], losses: list[float]) -> RangeTest:
        """Evaluate the losses of the completed steps."""
        differences = [after - first for after, first in zip(losses, before, strict=False)]
        smoothed = moving_average(differences)
        usable = highest_usable(rates, smoothed)
        return cls(tuple(rates[: len(losses)]), tuple(differences), tuple(smoothed), usable and usable / BELOW)


def find_learning_rate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    training: Training,
    *,
    held_out: Texts | HeldOutSplit | None = None,
    steps: int = STEPS,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    progress: Callable[[float, float], None] | None = None,
) -> RangeTest:
    """Suggest a peak learning rate by a range test. The model is trained: pass a copy if it is needed afterwards.

    Arguments and errors are those of `finetune`. The test ignores the steps, the schedule and the measurements of the
    run; held-out text is only read and checked.

    Args:
        model: model to train.
        tokenizer: tokenizer of the model.
        texts: training documents.
        training: settings of the planned run.
        held_out: held-out documents of the run.
        steps: number of learning rates to try, 2 or more; the rows of each step are read twice.
        lowest: rate of the first step.
        highest: rate of the last step.
        progress: called after every step with the share done, 0 … 1, and the step's loss.

    Raises:
        TrainingImpossible: the rates do not rise, or several processes would share the rows.
    """
    if not (0 < lowest < highest and steps >= 2):
        raise TrainingImpossible(
            f"{steps} rates from {lowest:g} to {highest:g} do not rise. Choose an increasing range and 2 steps or more."
        )
    if PartialState(cpu=not torch.accelerator.is_available()).num_processes > 1:
        raise TrainingImpossible(
            "The learning-rate range test runs in one process. Start it without accelerate launch."
        )
    inputs = read_inputs(model, tokenizer, texts, training, held_out=held_out)
    rates = [lowest * (highest / lowest) ** (step / (steps - 1)) for step in range(steps)]
    settings = replace(
        inputs.training, steps=2 * steps, epochs=None, warmup=0.0, schedule="constant_with_warmup",
        report_to=(),
    )  # fmt: skip
    rising = RisingRate(rates)
    rows = TwiceRead(inputs.rows, steps * training.batch * training.accumulate, training.seed)
    keep_nan = {"logging_nan_inf_filter": False}
    finetune(model, tokenizer, rows, settings, progress=progress, callbacks=[rising], arguments=keep_nan)
    return RangeTest.of(rates, rising.losses[:steps], rising.losses[steps:])


def moving_average(values: list[float]) -> list[float]:
    """Return the exponential moving average with bias correction, as in Adam."""
    average, averages = 0.0, []
    for number, value in enumerate(values, 1):
        average = MEMORY * average + (1 - MEMORY) * value
        averages.append(average / (1 - MEMORY**number))
    return averages


def highest_usable(rates: list[float], averages: list[float]) -> float | None:
    """Return the last rate before the average rises from its lowest value back to 0; None if it is never below 0.

    At the lowest rates the average varies around 0, so that its first rise to 0 means nothing. A diverged model may by
    chance be better on the rows of a later step.
    """
    lowest = min(range(len(averages)), key=averages.__getitem__)
    rise = list(takewhile(lambda step: averages[step] < 0, range(lowest, len(averages))))
    return rates[rise[-1]] if rise else None


class TwiceRead(IterableDataset):
    """``count`` rows of a dataset in random order (of a stream, the first ones), then the same rows again."""

    def __init__(self, rows: Any, count: int, seed: int) -> None:
        size = count_of(rows)
        if size is None:
            self.rows = list(islice(cycle(rows), count))
        else:
            order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
            self.rows = [rows[index] for index in islice(cycle(order), count)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows * 2)


class RisingRate(TrainerCallback):
    """Set the learning rate of every step, record the losses, and stop the run if they diverge.

    Args:
        rates: learning rates of the second half of the steps; in the first half the rate is 0.
    """

    def __init__(self, rates: list[float]) -> None:
        self.rates, self.losses = rates, list[float]()

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Overwrite the rate that `Trainer` has set by its schedule."""
        step = state.global_step - len(self.rates)
        if step == 0:
            optimizer.state.clear()  # moments of AdamW from the steps at rate 0
        rate = self.rates[step] if step >= 0 else 0.0
        for group in optimizer.param_groups:
            group["lr"] = rate

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Record the loss after every step."""
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])
            step = len(self.losses) - 1 - len(self.rates)
            if step >= 0 and not self.losses[-1] - self.losses[step] < DIVERGED:  # NaN as well
                control.should_training_stop = True
