"""PEFT adapters that load on a wrong base, or incompletely."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_posenc import patch_model
from hf_posenc.checkpoints.peft import load_peft_adapter
from hf_posenc.errors import PeftAdapterMismatch
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR, unguard_adapter_config

from ..small_models import edit_weights, llama
from .test_weights import APART, deviation, logits_of, silent

peft = pytest.importorskip("peft", reason="adapters need the extra `train`")


@pytest.fixture(autouse=True)
def quiet() -> object:
    """PEFT's warnings are what makes these entries nearly silent: most programs show none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def stock(folder: Path) -> torch.Tensor:
    """What a model says on an adapter that PEFT alone has loaded."""
    base = llama()
    torch.manual_seed(9)
    return logits_of(peft.PeftModel.from_pretrained(base, str(folder)).eval())


def wrapped(base: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).eval()


def load(base: torch.nn.Module, folder: Path) -> torch.nn.Module:
    return load_peft_adapter(base, folder).eval()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """An adapter as PEFT alone saves it, of a model without a scheme."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(llama(), config).save_pretrained(str(tmp_path / "plain"))
    return tmp_path / "plain"


@pytest.fixture
def whole(plain: Path) -> torch.Tensor:
    return stock(plain)


def test_on_another_base(tmp_path: Path) -> None:
    """Trained under ALiBi and put on a plain model."""
    model = wrapped(patch_model(llama(), "alibi", factor=4))
    model.save_pretrained(str(tmp_path))
    ours = logits_of(model)
    with pytest.raises(PeftAdapterMismatch, match="alibi"):
        load(llama(), tmp_path)
    with pytest.raises(PeftAdapterMismatch, match="alibi"):
        peft.PeftModel.from_pretrained(llama(), str(tmp_path))
    content = unguard_adapter_config(json.loads((tmp_path / "adapter_config.json").read_text()), "here")
    (tmp_path / "adapter_config.json").write_text(json.dumps(content))
    (tmp_path / SIDECAR).unlink()  # as if this package had neither saved it nor were imported
    with silent("peft", "an adapter loads on any base of the same shapes"):
        assert deviation(stock(tmp_path), ours) > APART


def test_positions_are_not_saved(tmp_path: Path) -> None:
    """PEFT saves its own parameters only; what the scheme has learned is lost."""
    model = wrapped(patch_model(llama(), "t5", factor=4))
    with silent("peft", "learned parameters that are not its own are left out of an adapter"):
        saved = peft.get_peft_model_state_dict(model)
        assert not any("posenc" in name for name in saved)
    model.save_pretrained(str(tmp_path))
    assert any("posenc" in name for name in load_file(tmp_path / PARAMETERS))
    base = patch_model(llama(), "t5", factor=4)
    with torch.no_grad():
        base.model.posenc.table.weight.zero_()
    assert torch.equal(logits_of(load(base, tmp_path)), logits_of(model))


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_tensors_are_missing(keep: float, plain: Path, whole: torch.Tensor) -> None:
    def cut(weights: dict[str, torch.Tensor]) -> None:
        for name in sorted(weights)[round(keep * len(weights)) :]:
            del weights[name]

    edit_weights(plain, cut, "adapter_model.safetensors")
    with silent("peft", f"an adapter with {keep:.0%} of its tensors loads, the others are drawn at random"):
        assert deviation(stock(plain), whole) > APART
    with pytest.raises(PeftAdapterMismatch, match="lacks"):
        load(llama(), plain)


def test_a_flipped_bit(tmp_path: Path) -> None:
    """Safetensors has no checksum; the sidecar names one."""
    model = wrapped(patch_model(llama(), "t5", factor=4))
    model.save_pretrained(str(tmp_path))
    data = bytearray((tmp_path / PARAMETERS).read_bytes())
    before = {name: value.clone() for name, value in load_file(tmp_path / PARAMETERS).items()}
    data[-2] ^= 0x40
    (tmp_path / PARAMETERS).write_bytes(data)
    with silent("safetensors", "a flipped bit of data is a number like any other"):
        after = load_file(tmp_path / PARAMETERS)
        assert not all(torch.equal(after[name], before[name]) for name in before)
    with pytest.raises(PeftAdapterMismatch, match=SIDECAR):
        load(patch_model(llama(), "t5", factor=4), tmp_path)


def test_prompts_drop_positions() -> None:
    """PEFT's prompts drop the position_ids they are given."""
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = peft.get_peft_model(llama(), config).eval()
    positions = torch.arange(64)[None] % 16
    with silent("peft", "prompt tuning ignores position_ids"):
        assert torch.equal(logits_of(model, position_ids=positions), logits_of(model))
