"""Recipes: what each trains on, and the learning-rate range test before them, which leaves nothing behind."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import patch_model
from hf_posenc.errors import TrainingImpossible
from hf_posenc.training import RECIPES, RangeTest, Training, find_learning_rate, finetune
from hf_posenc.training.range_test import highest_usable

from ..families.tiny import tiny
from .test_finetune import FACTOR, TRAINED, llama


class Rows(torch.utils.data.Dataset):
    """Rows of random tokens."""

    def __init__(self, length: int) -> None:
        self.ids = torch.randint(0, 32, (64, length), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


@pytest.mark.parametrize(
    ("name", "asked", "scheme", "length"),
    [
        ("full_length", "yarn", "yarn", TRAINED * FACTOR),
        ("pose", None, "yarn+pose", TRAINED),
        ("pose", "pi", "pi+pose", TRAINED),
        ("pose", "ntk+pose", "ntk+pose", TRAINED),
        ("drope", None, "drope", TRAINED),
    ],
)
def test_scheme_and_length_of_rows(name, asked, scheme, length) -> None:
    recipe = RECIPES[name]
    assert recipe.scheme(asked) == scheme
    model = patch_model(llama(), scheme, factor=FACTOR)
    assert recipe.training(model).length == length
    assert recipe.training(model, length=32, steps=3).length == 32, "what is given overrides a recipe"
    assert recipe.training(model, epochs=2.0).steps is None


def test_a_router_that_returns_more_than_a_product_gets_no_matrices() -> None:
    model = patch_model(tiny("llama4_text", num_hidden_layers=2, max_position_embeddings=64), "yarn", factor=2)
    assert any(name.endswith(".router") for name, _ in model.named_modules())  # control
    tuned = finetune(model, None, Rows(64), Training(length=64, steps=1, rank=2)).model
    trained = {name.split(".")[-4] for name, _ in tuned.named_parameters() if "lora_A" in name}
    assert "q_proj" in trained
    assert "router" not in trained


def test_lora_on_chosen_layers_with_a_chosen_alpha() -> None:
    model = patch_model(llama(), "yarn", factor=FACTOR)
    training = Training(length=64, steps=1, rank=4, alpha=3.0, target_modules=("q_proj", "k_proj"))
    tuned = finetune(model, None, Rows(64), training).model
    config = tuned.peft_config["default"]
    assert (config.r, config.lora_alpha, set(config.target_modules)) == (4, 3.0, {"q_proj", "k_proj"})
    trained = {name.split(".")[-4] for name, _ in tuned.named_parameters() if "lora_A" in name}
    assert trained == {"q_proj", "k_proj"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target_modules": ("q_prj",)}, "Did you mean 'q_proj'"),
        ({"method": "full", "alpha": 8.0}, "alpha=8.0"),
        ({"method": "full", "rank": 4}, "rank=4"),
        ({"method": "full", "train_embeddings": False}, "Choose method lora"),
    ],
)
def test_settings_of_lora_that_cannot_take_effect_are_refused(settings, said) -> None:
    with pytest.raises(TrainingImpossible, match=said):
        finetune(patch_model(llama(), "yarn", factor=FACTOR), None, Rows(64), Training(length=64, steps=1, **settings))


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
