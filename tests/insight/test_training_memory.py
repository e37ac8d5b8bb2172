"""The estimate of a training step's memory against what a real step allocates."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, set_seed

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from torch.utils.data import Dataset

from hf_posenc import patch_model
from hf_posenc.insight.advise.memory import four_bit_bytes, gathered_bytes, skeleton, training_memory
from hf_posenc.training import Training, finetune

LENGTH, FACTOR = 1024, 1.15


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, architectures=["LlamaForCausalLM"],
            initializer_range=0.1,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=2048, n_embd=128, n_layer=4, n_head=4, n_positions=256, architectures=["GPT2LMHeadModel"],
            embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        )
    )  # fmt: skip


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside the block held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return made

    def note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.held:
            self.held[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        self.now -= self.held.pop(key, 0)


class Row(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(5, 2000, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def measured(model: PreTrainedModel, **more: Any) -> int:
    """Bytes of the model and of everything that two steps of fine-tuning allocate at their peak."""
    patch_model(model, "yarn" if isinstance(model, LlamaForCausalLM) else "learned_interp", target_length=LENGTH)
    weights = sum({w.untyped_storage()._cdata: w.untyped_storage().nbytes() for w in model.parameters()}.values())
    with Peak() as peak:
        finetune(model, None, Row(), Training(length=LENGTH, steps=2, **more))  # type: ignore[arg-type]
    return weights + peak.most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "checkpointing", "dtype"),
    [
        (llama, False, torch.bfloat16),
        (llama, True, torch.bfloat16),
        (llama, True, torch.float32),
        (gpt2, True, torch.float32),
    ],
)
def test_the_estimate_is_near_what_a_step_allocates(make, checkpointing, dtype) -> None:
    """With the loss in chunks, as `finetune` computes it."""
    set_seed(0)
    model = make().to(dtype)
    estimate = training_memory(skeleton(model.config, str(dtype).removeprefix("torch.")), LENGTH)
    assert estimate is not None
    said = estimate.total_checkpointed if checkpointing else estimate.total
    took = measured(model, gradient_checkpointing=checkpointing)
    assert 1 / FACTOR < said / took < FACTOR


def llama_3_8b() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192, architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def test_a_known_model_in_4_bits() -> None:
    """The published 4-bit checkpoints of Llama 3 8B (bitsandbytes, constants quantised too) are files of 5.70 GB."""
    model = skeleton(llama_3_8b(), "bfloat16")
    multiplied = 2 * 4096 * 14336  # the largest matrix, as it is computed from its 4 bits
    assert four_bit_bytes(model) - multiplied == pytest.approx(5.70e9, rel=0.01)
    layer = 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096)
    assert gathered_bytes(model, 2 * 8_030_261_248, 32) == pytest.approx(2 * 2 * 128256 * 4096 + 2 * layer, rel=1e-4)
