"""A checkpoint of a scheme of one's own says so where the scheme's code is another one when it is loaded."""

from __future__ import annotations

import sys
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from hf_posenc import from_pretrained, patch_model, unpatch_model
from hf_posenc.errors import SchemeCodeChanged
from hf_posenc.schemes import registry

from ..small_models import edit, llama

NAME = "own_bias"
SOURCE = '''
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.schemes.base import Scheme

class Own(Scheme):
    """A bias."""

    def __init__(self, geometry, *, strength: float = {strength}):
        super().__init__(geometry)
        self.strength = strength

    def bias(self, ctx):
        return ToeplitzBias(lambda d: (-self.strength * {distance}).float().expand(self.geometry.heads, *d.shape))
'''


def register(strength: float = 0.1, distance: str = "d.abs()", module: str = "own_file") -> None:
    """The scheme as a file defines it, after its edits."""
    for table in (registry._SCHEMES, registry._CLASSES):
        table.pop(NAME, None)
    file = Path(mkdtemp()) / f"{module}.py"
    file.write_text(SOURCE.format(strength=strength, distance=distance), encoding="utf-8")
    spec = spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[module] = module_from_spec(spec)
    spec.loader.exec_module(made)
    registry.register_scheme(NAME)(made.Own)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    for name in ("own_file", "renamed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    register()
    model = llama()
    patch_model(model, NAME)
    model.save_pretrained(tmp_path)
    unpatch_model(model)
    assert not hasattr(model.config, "position_scheme_code")
    return tmp_path


def warned(folder: Path, **load: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = from_pretrained(folder, **load)
    assert load or type(model).__name__ == "LlamaForCausalLM"
    return [str(warning.message) for warning in found if warning.category is SchemeCodeChanged]


@pytest.mark.parametrize("edited", [{"strength": 0.2}, {"distance": "d.abs().sqrt()"}], ids=str)
def test_an_edited_scheme_is_noticed(edited: dict, saved: Path) -> None:
    assert warned(saved) == []
    register(**edited)
    assert len(warned(saved)) == 1
    register()
    assert warned(saved) == []


def test_an_adapter_folder_says_so_too(saved: Path, tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path / "base")
    patch_model(model, NAME)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    assert warned(tmp_path / "base", peft_adapter=tmp_path / "adapter") == []
    register(strength=0.2)
    assert warned(tmp_path / "base", peft_adapter=tmp_path / "adapter")


def test_a_digest_of_bytecode_of_an_earlier_version_says_nothing(saved: Path) -> None:
    register(strength=0.2)
    assert len(warned(saved)) == 1  # control
    edit(saved, position_scheme_code={"python": "3.11", "digest": "0" * 32})
    assert warned(saved) == []
