"""A file cannot make transformers fetch code: names of Hub kernels are refused, unless the caller gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, LlamaForCausalLM, modeling_utils

import hf_posenc
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import CheckpointMismatch, MissingPackage, PeftAdapterMismatch

from ..small_models import auto_classes, edit

KERNEL = "kernels-community/flash-attn2"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain checkpoint and one with a scheme."""
    found, model = {name: tmp_path_factory.mktemp(name) for name in ("plain", "patched")}, tiny_model("llama")
    model.save_pretrained(found["plain"])
    hf_posenc.patch_model(model, "yarn", factor=2).save_pretrained(found["patched"])
    return found


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels that transformers asks for; nothing is fetched."""
    asked: list[str] = []

    def fetch(name: str, *_: Any, **__: Any) -> None:
        asked.append(name)
        raise ImportError(f"{name} is not fetched")

    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", fetch)
    return asked


@pytest.fixture
def auto() -> Iterator[None]:
    with auto_classes():
        yield


def written(folder: Path, folder_of_file: Path, **entries: Any) -> Path:
    """A copy of a checkpoint with more in its configuration."""
    for file in folder.iterdir():
        (folder_of_file / file.name).write_bytes(file.read_bytes())
    return edit(folder_of_file, **entries)


ENTRIES = [
    {"attn_implementation": KERNEL},
    {"_attn_implementation": KERNEL},
    {"_attn_implementation_internal": KERNEL},
    {"attn_implementation": "someone/kernel@main:function"},
    {"attn_implementation": "https://example.invalid/kernel"},
    {"attn_implementation": {"": KERNEL}},
    {"attn_implementation": 5},
    {"experts_implementation": "someone/kernel"},
    {"text_config": {"attn_implementation": KERNEL}},
    {"quantization_config": {"quant_method": "mxfp4"}},
    {"quantization_config": {"quant_method": ["fp8"]}},
]


@pytest.mark.parametrize("kind", ["plain", "patched"])
@pytest.mark.parametrize("entries", ENTRIES, ids=str)
def test_kernels_are_not_fetched(
    kind: str, entries: dict[str, Any], folders: dict[str, Path], tmp_path: Path, fetched: list
) -> None:
    with pytest.raises(CheckpointMismatch, match="not installed here, and which transformers may fetch as code"):
        hf_posenc.from_pretrained(written(folders[kind], tmp_path, **entries))
    assert fetched == []


@pytest.mark.usefixtures("auto")
@pytest.mark.parametrize("cls", [AutoModelForCausalLM, LlamaForCausalLM])
def test_refused_by_auto(cls: Any, folders: dict[str, Path], tmp_path: Path, fetched: list) -> None:
    with pytest.raises(CheckpointMismatch, match="may fetch as code"):
        cls.from_pretrained(written(folders["patched"], tmp_path, attn_implementation=KERNEL))
    assert fetched == []


@pytest.mark.parametrize("kind", ["plain", "patched"])
def test_trust_given_by_the_caller(kind: str, folders: dict[str, Path], tmp_path: Path, fetched: list) -> None:
    """Control: the same name as a keyword reaches transformers; and an ordinary one in the file is taken."""
    folder = written(folders[kind], tmp_path, attn_implementation="eager")
    assert hf_posenc.from_pretrained(folder).config._attn_implementation == "eager"
    with pytest.raises(MissingPackage, match="Install it"):
        hf_posenc.from_pretrained(folder, attn_implementation=KERNEL)
    assert fetched == [KERNEL]


@pytest.mark.usefixtures("auto")
def test_pickled_weights_under_auto(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = written(folders["patched"], tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointMismatch, match="cannot be loaded"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_an_adapter_without_its_sidecar(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its guard says that it was trained under a scheme: it is refused on any base, and not loaded without one."""
    peft = pytest.importorskip("peft")
    model = hf_posenc.patch_model(tiny_model("llama"), "yarn", factor=2)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    adapter = tmp_path / "adapter"
    peft.get_peft_model(model, config).save_pretrained(str(adapter))
    hf_posenc.from_pretrained(folders["plain"], peft_adapter=adapter)
    (adapter / "position_scheme.json").unlink()
    for base in (folders["plain"], folders["patched"]):
        with pytest.raises(PeftAdapterMismatch, match=r"position_scheme\.json is missing"):
            hf_posenc.from_pretrained(base, peft_adapter=adapter)
