"""Models offloaded by accelerate, before or after the patch, compute what they compute in memory; so do adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model, infer_auto_device_map
from accelerate.utils.dataclasses import get_module_class_from_name
from transformers import PreTrainedModel

from hf_posenc import describe, from_pretrained, load_peft_adapter, unpatch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import NoValues, TrainingImpossible, UnsupportedModel

from .models import LEARNED, SHARED, device_map, logits_of, patched, seeded

CLOSE = {"rtol": 0.0, "atol": 1e-6}
Way = Callable[[PreTrainedModel, str, Path], PreTrainedModel]


def to_disk_in_part(model: PreTrainedModel, family: str, folder: Path) -> PreTrainedModel:
    """The second half on disk, with what the layers share."""
    shared = "disk" if any(name.startswith(SHARED[family]) for name, _ in model.named_parameters()) else None
    return dispatch_model(model, device_map(family, "cpu", "disk", shared), offload_dir=folder)


WAYS: dict[str, Way] = {
    "memory": lambda model, family, folder: cpu_offload(model, execution_device="cpu"),
    "disk": lambda model, family, folder: disk_offload(model, folder, execution_device="cpu"),
    "part": to_disk_in_part,
    "blocks": lambda model, family, folder: cpu_offload(
        model, execution_device="cpu", preload_module_classes=["LlamaDecoderLayer", "GPT2Block", "BertLayer"]
    ),
}


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scheme", LEARNED[:3])
def test_offloaded_after_the_patch(scheme: str, way: str, family: str, tmp_path: Path) -> None:
    model = patched(family, scheme)
    expected = logits_of(model)
    offloaded = WAYS[way](model, family, tmp_path)
    torch.testing.assert_close(logits_of(offloaded), expected, **CLOSE)
    torch.testing.assert_close(logits_of(offloaded), expected, **CLOSE)
    torch.testing.assert_close(logits_of(unpatch_model(offloaded)), logits_of(tiny_model(family)), rtol=0, atol=0)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("way", ["memory", "disk", "part"])
@pytest.mark.parametrize("scheme", LEARNED[2:4])
def test_offloaded_before_the_patch(scheme: str, way: str, family: str, tmp_path: Path) -> None:
    """What is drawn is the same, is offloaded as its neighbours are, and goes with the patch."""
    offloaded = seeded(WAYS[way](tiny_model(family), family, tmp_path), scheme)
    expected = logits_of(seeded(tiny_model(family), scheme))
    torch.testing.assert_close(logits_of(offloaded), expected, **CLOSE)
    torch.testing.assert_close(logits_of(offloaded), expected, **CLOSE)
    where = {weight.is_meta for name, weight in offloaded.named_parameters() if "posenc" in name}
    assert where == {"part": {False, True} if scheme == "fire" else {False}}.get(way, {True})
    torch.testing.assert_close(logits_of(unpatch_model(offloaded)), logits_of(tiny_model(family)), rtol=0, atol=0)


def test_blocks_that_load_their_weights_are_offloaded_after_the_patch(tmp_path: Path) -> None:
    model = WAYS["blocks"](tiny_model("llama"), "llama", tmp_path)
    with pytest.raises(UnsupportedModel, match="offload it afterwards"):
        seeded(model, "shaw")
    torch.testing.assert_close(logits_of(model), logits_of(tiny_model("llama")), rtol=0, atol=0)


@pytest.mark.parametrize("way", ["memory", "part", "blocks"])
@pytest.mark.parametrize("scheme", ["t5", "shaw"])
def test_offloaded_models_are_saved_whole(scheme: str, way: str, tmp_path: Path) -> None:
    model = patched("llama", scheme)
    expected = logits_of(model)
    WAYS[way](model, "llama", tmp_path / "off").save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(logits_of(from_pretrained(tmp_path / "saved")), expected, rtol=0, atol=0)


@pytest.mark.parametrize("scheme", ["t5", "shaw", "sinusoidal"])
@pytest.mark.parametrize("where", ["auto", "named"])
def test_loaded_over_devices(where: str, scheme: str, tmp_path: Path) -> None:
    model = patched("llama", scheme)
    expected = logits_of(model)
    model.save_pretrained(tmp_path / "saved")
    maps = {"auto": "auto", "named": device_map("llama", "cpu", "disk", "disk")}
    loaded = from_pretrained(tmp_path / "saved", device_map=maps[where], offload_folder=tmp_path / "off")
    torch.testing.assert_close(logits_of(loaded), expected, **CLOSE)
    torch.testing.assert_close(logits_of(loaded), expected, **CLOSE)
    assert describe(loaded).proof.verdict == "moved"
    torch.testing.assert_close(logits_of(unpatch_model(loaded)), logits_of(tiny_model("llama")), rtol=0, atol=0)


def test_weights_without_values_are_reported() -> None:
    model = patched("llama", "t5")
    model.model.posenc.to("meta")
    with pytest.raises(NoValues, match=r"'weight'.*meta device"):
        logits_of(model)


@pytest.mark.parametrize(
    ("family", "scheme", "expected"),
    [
        ("llama", "sinusoidal", {"EmbeddingLlamaLayer", "LlamaDecoderLayer"}),
        ("llama", "t5", {"LlamaDecoderLayer"}),
        ("bert", "t5", {"BertEmbeddings", "BertLayer"}),
    ],
)
def test_blocks_that_stay_whole_are_named_as_they_are(family: str, scheme: str, expected: set[str]) -> None:
    """accelerate looks for these names when it splits a model, and FSDP when it wraps one."""
    model = tiny_model(family)
    before = model._no_split_modules
    seeded(model, scheme)
    names = {type(module).__name__ for module in model.modules()}
    assert set(model._no_split_modules) == expected <= names
    found = infer_auto_device_map(model, max_memory={"cpu": "150KB"}, no_split_module_classes=model._no_split_modules)
    blocks = [name for name, module in model.named_modules() if type(module).__name__ in expected]
    assert not [name for name in found if any(name.startswith(f"{block}.") for block in blocks)]
    assert get_module_class_from_name(model, next(iter(expected - set(before)), next(iter(expected)))) is not None
    unpatch_model(model)
    assert model._no_split_modules is before


peft = pytest.importorskip("peft", reason="PEFT adapters need the extra `train`")


def lora(**more) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, **more)


def test_a_new_adapter_on_weights_that_are_not_offloaded(tmp_path: Path) -> None:
    model = patched("llama", "yarn")
    dispatch_model(model, device_map("llama", "cpu", "disk"), main_device="cpu", offload_dir=str(tmp_path))
    before = logits_of(model)
    assert not torch.allclose(logits_of(peft.get_peft_model(model, lora(layers_to_transform=[0]))), before)


def test_an_adapter_is_added_before_offloading_or_with_a_device_map(tmp_path: Path) -> None:
    wrapped = peft.get_peft_model(patched("llama", "t5"), lora())
    want = logits_of(wrapped)
    wrapped.save_pretrained(tmp_path / "adapter")
    assert torch.equal(logits_of(cpu_offload(wrapped, "cpu") or wrapped), want)

    offloaded = patched("llama", "t5")
    cpu_offload(offloaded, "cpu")
    with pytest.raises(TrainingImpossible, match="Add the adapter first"):
        peft.get_peft_model(offloaded, lora())
    with pytest.raises(UnsupportedModel, match="Add the adapter first"):
        load_peft_adapter(offloaded, tmp_path / "adapter")

    mapped = patched("llama", "t5")
    hf_device_map = device_map("llama", "cpu", "disk", shared="cpu")
    dispatch_model(mapped, hf_device_map, main_device="cpu", offload_dir=str(tmp_path / "weights"))
    assert torch.equal(logits_of(load_peft_adapter(mapped, tmp_path / "adapter")), want)
    patched("llama", "t5").save_pretrained(tmp_path / "base")
    loaded = from_pretrained(tmp_path / "base", device_map=hf_device_map, offload_folder=tmp_path / "off")
    with pytest.raises(UnsupportedModel, match="loaded without offloading"):
        load_peft_adapter(loaded, tmp_path / "adapter")
