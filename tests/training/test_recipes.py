"""Recipes: what each trains on."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import patch_model
from hf_posenc.errors import TrainingImpossible
from hf_posenc.training import RECIPES, Training, finetune

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
