"""Learning-rate range test: train some steps at a rate that rises exponentially, and see where the loss falls.

The loss of single rows varies more than some dozen steps of fine-tuning lower it. Each row is therefore read twice:
first by the model as it is, then while it is trained; what counts is the difference.

    difference[t] = loss of the trained model on the rows of step t  −  that of the model as it was

The differences are smoothed by an exponential moving average. Smith reads off the largest usable rate where the loss
stops falling and begins to rise. Here it is the last rate before the average rises from its lowest value back to 0. A
tenth of it is proposed as the peak of a run: the peak holds for many steps, and a rate of the test for one.

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
MEMORY = 0.8  # share of the average that a step leaves
BELOW = 10  # the rate proposed is the highest usable one divided by this
DIVERGED = 1.0  # nats/token that the loss may rise before the test ends


@dataclass(frozen=True)
class RangeTest:
    """The result of a learning-rate range test, step by step; it ends early where the loss diverges.

    Attributes:
        rates: of each step, rising.
        differences: loss minus that of the model as it was, on the rows of each step, nats/token.
        smoothed: their moving average.
        suggested: a peak learning rate; None where no rate lowered the loss.
    """

    rates: tuple[float, ...]
    differences: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggested: float | None

    @classmethod
    def of(cls, rates: list[float], before: list[float], losses: list[float]) -> RangeTest:
        """Evaluate the losses of the steps that were done."""
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

    Arguments are those of `finetune`, whose errors are raised as well. The length of the run in steps, its schedule
    and its measurements have no part in the test; held-out text is read and checked alone.

    Args:
        model: to train.
        tokenizer: of the model.
        texts: training documents.
        training: settings of the run that a rate is wanted for.
        held_out: held-out documents of the run.
        steps: learning rates to try, 2 or more; the rows of each step are read twice.
        lowest: rate of the first step.
        highest: rate of the last one.
        progress: called after every step with the share done, 0 … 1, and the step's loss.

    Raises:
        TrainingImpossible: the rates do not rise, or several processes would share the rows.
    """
    if not (0 < lowest < highest and steps >= 2):
        raise TrainingImpossible(
            f"{steps} rates from {lowest:g} to {highest:g} were asked for. Choose an increasing range."
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
    """Exponential moving average, with the weights of the first values made up for."""
    average, found = 0.0, []
    for number, value in enumerate(values, 1):
        average = MEMORY * average + (1 - MEMORY) * value
        found.append(average / (1 - MEMORY**number))
    return found


def highest_usable(rates: list[float], averages: list[float]) -> float | None:
    """The last rate before the average rises from its lowest value back to 0; None where it is never below 0.

    At the lowest rates the average varies around 0, so that its first rise to 0 says nothing; and a model that has
    diverged may by chance be better on the rows of a later step.
    """
    lowest = min(range(len(averages)), key=averages.__getitem__)
    rise = list(takewhile(lambda step: averages[step] < 0, range(lowest, len(averages))))
    return rates[rise[-1]] if rise else None


class TwiceRead(IterableDataset):
    """Some rows of a data set in an order drawn from ``seed``, and the same again; of a stream, the first ones."""

    def __init__(self, rows: Any, count: int, seed: int) -> None:
        known = count_of(rows)
        if known is None:
            self.rows = list(islice(cycle(rows), count))
        else:
            order = torch.randperm(known, generator=torch.Generator().manual_seed(seed)).tolist()
            self.rows = [rows[index] for index in islice(cycle(order), count)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows * 2)


class RisingRate(TrainerCallback):
    """Set the learning rate of every step, keep the losses, and end the run where they diverge.

    Args:
        rates: of the steps in the second half of a run; in the first half the rate is 0.
    """

    def __init__(self, rates: list[float]) -> None:
        self.rates, self.losses = rates, list[float]()

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Before every step; `Trainer` has set the rate of its schedule after the last one."""
        step = state.global_step - len(self.rates)
        if step == 0:
            optimizer.state.clear()  # what AdamW has gathered at a rate of 0
        rate = self.rates[step] if step >= 0 else 0.0
        for group in optimizer.param_groups:
            group["lr"] = rate

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """After every step."""
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])
            step = len(self.losses) - 1 - len(self.rates)
            if step >= 0 and not self.losses[-1] - self.losses[step] < DIVERGED:  # NaN as well
                control.should_training_stop = True
