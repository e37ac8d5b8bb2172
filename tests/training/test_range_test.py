"""The learning-rate range test: rates that rise, losses of the same rows before and after, and nothing left behind."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import patch_model
from hf_posenc.training import RangeTest, Training, find_learning_rate
from hf_posenc.training.range_test import highest_usable
from tests.training.test_recipes import Rows, llama

STEPS = 12


class Repeating(Rows):
    """Rows of one repeated token each, which a model learns at once."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.ids = self.ids[:, :1].expand(-1, length).contiguous()


def result_of(model, **settings) -> RangeTest:
    rows = settings.pop("rows", Repeating(32))
    training = Training(length=32, steps=1, batch=4, **{"method": "full", **settings})
    return find_learning_rate(deepcopy(model), None, rows, training, steps=STEPS, lowest=1e-5, highest=1e3)


def test_rates_rise_losses_fall_then_diverge_and_the_model_stays_as_it_is() -> None:
    model = patch_model(llama(), "yarn", factor=4)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = result_of(model)
    ratios = [after / before for before, after in zip(found.rates, found.rates[1:], strict=False)]
    assert found.rates[0] == 1e-5
    assert ratios == pytest.approx([1e8 ** (1 / (STEPS - 1))] * len(ratios))
    assert found.differences[0] == pytest.approx(0.0, abs=2e-4), "the first loss is that of the untrained model"
    assert min(found.smoothed) < -0.05
    assert len(found.differences) < STEPS, "it ends where the loss diverges"
    lowest = found.smoothed.index(min(found.smoothed))
    back = next((i for i in range(lowest, len(found.rates)) if found.smoothed[i] >= 0), len(found.rates))
    assert found.suggested == found.rates[back - 1] / 10
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert type(model) is type(patch_model(llama(), "yarn", factor=4))


def test_no_rate_is_suggested_where_none_helps() -> None:
    nothing = RangeTest.of([1e-3, 1e-2, 1e-1], [2.0, 2.0, 2.0], [2.1, 2.2, math.nan])
    assert nothing.suggested is None


def test_rates_after_the_loss_has_risen_are_not_suggested() -> None:
    """Noise at low rates, a fall, a rise above 0, and one step that is better by chance."""
    rates = [10.0**power for power in range(-8, 0)]
    averages = [-0.01, 0.01, -0.2, -0.4, 0.1, 0.6, -0.1, 0.2]
    assert highest_usable(rates, averages) == 1e-5
    assert highest_usable(rates, averages[:4]) == 1e-5
    assert highest_usable(rates, [0.0, *averages[4:6]]) is None
