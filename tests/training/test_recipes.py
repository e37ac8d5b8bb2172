"""Recipes: what each trains on, and rows that grow during a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig, LlamaConfig, LlamaForCausalLM

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc import load_starter, patch_model
from hf_posenc.errors import CheckpointMismatch, LengthContradiction, TrainingImpossible
from hf_posenc.training import RECIPES, Training, finetune
from hf_posenc.training.length_trainer import parts_at, split_rows

TRAINED, FACTOR = 16, 4


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=TRAINED,
        )
    )  # fmt: skip


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
        ("growing_length", "yarn", "yarn", TRAINED * FACTOR),
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


@pytest.mark.parametrize("method", ["prompt", "prefix"])
def test_rows_leave_room_for_virtual_tokens(method: str) -> None:
    model, recipe = patch_model(llama(), "yarn", factor=FACTOR), RECIPES["full_length"]
    assert recipe.training(model, method=method, rank=5).length == TRAINED * FACTOR - 5
    assert recipe.training(model, method=method, rank=5, length=32).length == 32
    assert recipe.training(model, method="lora", rank=5).length == TRAINED * FACTOR
    with pytest.raises(LengthContradiction, match="behind 5 virtual ones"):
        finetune(model, None, Rows(64), recipe.training(model, method=method, rank=5, length=TRAINED * FACTOR, steps=1))


def test_a_router_that_returns_more_than_a_product_gets_no_matrices() -> None:
    config = Llama4TextConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, intermediate_size_mlp=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_local_experts=2, max_position_embeddings=64,
        pad_token_id=0,
    )  # fmt: skip
    model = patch_model(Llama4ForCausalLM(config), "yarn", factor=2)
    assert any(name.endswith(".router") for name, _ in model.named_modules())  # control
    tuned = finetune(model, None, Rows(64), Training(length=64, steps=1, rank=2)).model
    trained = {name.split(".")[-4] for name, _ in tuned.named_parameters() if "lora_A" in name}
    assert "q_proj" in trained
    assert "router" not in trained


def test_drope_refuses_another_scheme() -> None:
    with pytest.raises(TrainingImpossible, match="'yarn' was asked for"):
        RECIPES["drope"].scheme("yarn")


@pytest.mark.parametrize(
    ("stages", "steps", "parts"),
    [(1, 4, [1, 1, 1, 1]), (2, 4, [2, 2, 1, 1]), (3, 6, [4, 4, 2, 2, 1, 1]), (3, 2, [4, 2]), (3, 4, [4, 4, 2, 1])],
)
def test_rows_double_in_every_stage(stages, steps, parts) -> None:
    assert [parts_at(step, steps=steps, stages=stages) for step in range(steps)] == parts


def test_cut_rows_keep_their_tokens_in_order() -> None:
    whole = {"input_ids": torch.arange(24).view(2, 12), "labels": torch.arange(24).view(2, 12), "other": 3}
    short = split_rows(whole, 4)
    assert short["input_ids"].tolist()[:2] == [[0, 1, 2], [3, 4, 5]]
    assert torch.equal(short["labels"].flatten(), whole["labels"].flatten())
    assert short["other"] == 3


@pytest.mark.parametrize("stages", [1, 3])
def test_the_model_sees_rows_that_grow(stages) -> None:
    model, seen = patch_model(llama(), "yarn", factor=FACTOR), []
    model.register_forward_pre_hook(lambda m, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True)
    training = Training(length=64, steps=6, method="full", learning_rate=1e-3, length_stages=stages)
    finetune(model, None, Rows(64), training)
    expected = [(1, 64)] * 6 if stages == 1 else [(4, 16), (4, 16), (2, 32), (2, 32), (1, 64), (1, 64)]
    assert [tuple(shape) for shape in seen] == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": 30, "length_stages": 3}, "multiple of 4"),
        ({"length": 4, "length_stages": 3}, "at least twice"),
        ({"length": 64, "length_stages": 2, "packing": "separate"}, "length_stages=1"),
        ({"length": 64, "length_stages": 10_000}, "fewer stages"),
    ],
)
def test_rows_that_cannot_grow_are_refused(settings, said) -> None:
    with pytest.raises(TrainingImpossible, match=said):
        Training(steps=4, **settings)


def test_a_run_that_grew_resumes_to_the_same_weights(tmp_path: Path) -> None:
    def run(folder: Path, resume: bool = False) -> dict[str, torch.Tensor]:
        training = Training(
            length=64, steps=6, method="full", learning_rate=1e-3, length_stages=3, save_every=3, seed=2
        )
        model = patch_model(llama(), "yarn", factor=FACTOR)
        return finetune(model, None, Rows(64), training, out=folder, resume=resume).model.state_dict()

    whole = run(tmp_path / "run")
    for name in ("checkpoint-6", "curve.json"):
        path = tmp_path / "run" / name
        path.rename(tmp_path / name)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["length_stages"] == 3
    again = run(tmp_path / "run", resume=True)
    for name, weight in whole.items():
        torch.testing.assert_close(again[name], weight, atol=1e-6, rtol=0)


def test_a_run_that_grew_is_not_resumed_with_more_steps(tmp_path: Path) -> None:
    def run(steps: int, stages: int, folder: str, resume: bool) -> None:
        training = Training(
            length=64, steps=steps, method="full", learning_rate=1e-3, length_stages=stages, save_every=1
        )
        model = patch_model(llama(), "yarn", factor=FACTOR)
        finetune(model, None, Rows(64), training, out=tmp_path / folder, resume=resume)

    run(1, 2, "grew", False)
    with pytest.raises(CheckpointMismatch, match="grew over 1 steps, and would be cut short again for part of 2"):
        run(2, 2, "grew", True)
    run(1, 1, "whole", False)
    run(2, 1, "whole", True)  # the control: rows of one length go on


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
        ({"method": "ia3", "rank": 4}, "rank=4"),
        ({"method": "ia3", "target_modules": ("q_proj",)}, "has no use for"),
        ({"method": "full", "train_embeddings": False}, "Choose method lora"),
    ],
)
def test_settings_of_lora_that_cannot_take_effect_are_refused(settings, said) -> None:
    with pytest.raises(TrainingImpossible, match=said):
        finetune(patch_model(llama(), "yarn", factor=FACTOR), None, Rows(64), Training(length=64, steps=1, **settings))


def test_they_are_refused_before_the_texts_are_read(tmp_path) -> None:
    unread, training = [tmp_path / "none.txt"], Training(length=64, steps=1, method="ia3", alpha=3.0)
    with pytest.raises(TrainingImpossible, match=r"alpha=3\.0"):
        finetune(patch_model(llama(), "yarn", factor=FACTOR), load_starter("llama")[1], unread, training)
