"""A PEFT adapter on an offloaded model gets values or is refused: PEFT leaves it on the meta device silently."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, dispatch_model

from hf_posenc import get_peft_model, load_peft_adapter
from hf_posenc.errors import UnsupportedModel

from .models import device_map, logits_of, patched

peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")


def lora(**more) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, **more)


def test_a_new_adapter_on_weights_that_are_not_offloaded(tmp_path: Path) -> None:
    model = patched("llama", "yarn")
    dispatch_model(model, device_map("llama", "cpu", "disk"), main_device="cpu", offload_dir=str(tmp_path))
    before = logits_of(model)
    assert not torch.allclose(logits_of(get_peft_model(model, lora(layers_to_transform=[0]))), before)


def test_an_adapter_is_added_before_offloading_or_with_a_device_map(tmp_path: Path) -> None:
    wrapped = get_peft_model(patched("llama", "t5"), lora())
    want = logits_of(wrapped)
    wrapped.save_pretrained(tmp_path / "adapter")
    assert torch.equal(logits_of(cpu_offload(wrapped, "cpu") or wrapped), want)

    offloaded = patched("llama", "t5")
    cpu_offload(offloaded, "cpu")
    with pytest.raises(UnsupportedModel, match="Add the adapter first"):
        load_peft_adapter(offloaded, tmp_path / "adapter")

    mapped = patched("llama", "t5")
    hf_device_map = device_map("llama", "cpu", "disk", shared="cpu")
    dispatch_model(mapped, hf_device_map, main_device="cpu", offload_dir=str(tmp_path / "weights"))
    assert torch.equal(logits_of(load_peft_adapter(mapped, tmp_path / "adapter")), want)
