"""TRL's SFTTrainer on patched models: equal losses, separate packed conversations, adapters with the scheme."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

import hf_posenc

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("trl", reason="TRL is not among this package's dependencies")

import peft
import trl
from datasets import Dataset

from hf_posenc.training.methods import lora

EXAMPLE = Path(__file__).parents[2] / "examples" / "sft_trl.py"
FACTOR = 2


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sft_trl", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(EXAMPLE.parent)  # as of a script: it imports `common` from beside it
        spec.loader.exec_module(module)
    return module


def chats(count: int) -> list[dict[str, Any]]:
    """Short ones of different lengths, several of which fit a row."""
    return [
        {
            "prompt": [{"role": "user", "content": "def " + " ".join(f"name_{i}" for i in range(3 + n))}],
            "completion": [{"role": "assistant", "content": f"Return name_{n} of the {n} names."}],
        }
        for n in range(count)
    ]


def trainer_of(example: ModuleType, scheme: str, folder: Path, peft_config: Any = None, **more: Any) -> Any:
    model, tokenizer = example.load("llama")
    torch.manual_seed(0)
    hf_posenc.patch_model(model, scheme, factor=FACTOR)
    settings = {
        "output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
        "max_length": 512, "bf16": False, "use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0,
        "save_strategy": "no", "logging_steps": 1, "gradient_checkpointing": False, "dataloader_pin_memory": False,
    }  # fmt: skip
    return trl.SFTTrainer(
        model, trl.SFTConfig(**settings | more), train_dataset=Dataset.from_list(chats(4)), processing_class=tokenizer,
        peft_config=peft_config or lora(model, 2),
    )  # fmt: skip


def nats(trainer: Any) -> float:
    """The loss of the conversations, each read alone, by the model's own logits."""
    model, total, count = trainer.model.eval(), 0.0, 0
    for chat in chats(4):
        tokenizer = trainer.processing_class
        prompt = tokenizer.apply_chat_template(chat["prompt"], add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template([*chat["prompt"], *chat["completion"]], tokenize=False)
        ids, start = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (whole, prompt))
        assert ids[: len(start)] == start
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, len(start) - 1 : -1]
        answer = torch.tensor(ids[len(start) :])
        total += functional.cross_entropy(logits, answer, reduction="sum").item()
        count += len(answer)
    return total / count


@pytest.mark.parametrize("scheme", ["yarn", "t5"])
@pytest.mark.parametrize("packing", [False, True])
def test_the_loss_is_that_of_conversations_read_alone(
    scheme: str, packing: bool, example: ModuleType, tmp_path: Path
) -> None:
    """Padded to one width, or packed into one row: neither padding nor neighbours are seen."""
    trainer = trainer_of(example, scheme, tmp_path, packing=packing)
    expected = nats(trainer)
    if packing:
        (row,) = trainer.train_dataset
        assert len(row["seq_lengths"]) == 4
    trainer.model.train()
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-4)
    assert nats(trainer) != pytest.approx(expected, abs=1e-3)  # and it learns


@pytest.mark.parametrize("target_modules", [None, ["q_proj", "v_proj"]], ids=["methods.lora", "LoraConfig"])
def test_a_learned_scheme_is_resumed_as_it_was(target_modules, example: ModuleType, tmp_path: Path) -> None:
    def train(folder: Path, steps: int, *, resume: bool = False) -> torch.Tensor:
        config = None if target_modules is None else peft.LoraConfig(r=2, target_modules=target_modules)
        trainer = trainer_of(
            example, "t5", folder, config, max_steps=steps, save_strategy="steps", save_steps=2,
            lr_scheduler_type="constant",
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        table = hf_posenc.scheme_of(trainer.model).table.weight
        assert table.requires_grad
        with torch.no_grad():
            return trainer.model.eval()(torch.arange(5, 400)[None]).logits

    whole = train(tmp_path / "whole", 4)
    cut = train(tmp_path / "cut", 2)
    assert not torch.equal(cut, whole)
    assert torch.equal(train(tmp_path / "cut", 4, resume=True), whole)
