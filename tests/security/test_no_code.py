"""No code, path or module name is taken from a file: hostile folders whose marker must not appear."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.schemes.spec import plan

from ..small_models import edit

ROOT = Path(hf_posenc.__file__).parent
PICKLING = {"pickle", "cPickle", "dill", "marshal", "shelve", "cloudpickle", "joblib"}
RUNNING = {"eval", "exec", "compile", "__import__"}


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


def sources() -> list[Path]:
    """Our own modules, those installed from other folders included."""
    import hf_posenc.eval
    import hf_posenc.patches

    folders = {ROOT, Path(hf_posenc.eval.__file__).parent, Path(hf_posenc.patches.__file__).parent}
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def test_control_the_payload_works(marker: Path) -> None:
    """Control: reading the pickle does make the marker."""
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()


@pytest.mark.parametrize("scheme", [None, "yarn"])
def test_pickled_checkpoint(scheme: str | None, tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "model"
    model = tiny_model("llama")
    model = model if scheme is None else hf_posenc.patch_model(model, scheme, factor=2)
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Bomb(marker)}, folder / "pytorch_model.bin")
    (folder / "training_args.bin").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(errors.CheckpointMismatch):
        hf_posenc.from_pretrained(folder, local_files_only=True)
    assert not marker.exists()


@pytest.mark.parametrize("entry", ["auto_map", "custom_pipelines"])
def test_code_beside_a_checkpoint(entry: str, tmp_path: Path, marker: Path) -> None:
    """``auto_map`` names code in the folder; without the flag it is not even looked at."""
    folder = tmp_path / "model"
    hf_posenc.patch_model(tiny_model("llama"), "yarn", factor=2).save_pretrained(folder)
    code = {entry: {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}, "trust_remote_code": True}
    edit(folder, **code)
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n", encoding="utf-8")
    hf_posenc.from_pretrained(folder, local_files_only=True)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["evil", "megatron.core.evil"])
def test_adapter_that_names_a_module(name: str, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "adapter"
    peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    edit(folder, "adapter_config.json", auto_mapping={"base_model_class": "Evil", "parent_library": name})
    hf_posenc.load_peft_adapter(tiny_model("llama"), folder)
    edit(folder, "adapter_config.json", megatron_core=name)
    with pytest.raises(errors.PeftAdapterMismatch, match="module"):
        hf_posenc.load_peft_adapter(tiny_model("llama"), folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["evil", "evil:Evil", "evil.Evil", "hf_posenc.schemes.rotary.yarn:Yarn", "os", "__main__:x"]
)
def test_scheme_names_are_looked_up(name: str, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.UnknownScheme):
        plan(name)
    block = {"format": 1, "layers": {}, "trained_length": 8, "target_length": 8, "host_length": 8}
    block |= {"scheme": [{"name": name, "options": {}}]}
    with pytest.raises(errors.CheckpointMismatch, match="not registered"):
        SchemeConfig.read(block, "here")
    assert not marker.exists()


def test_no_module_unpickles_or_runs_text() -> None:
    for node in (node for file in sources() for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            assert not PICKLING & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in PICKLING
        elif isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in RUNNING), ast.unparse(node)
            whole = ast.unparse(called)
            assert whole not in ("torch.load", "os.system", "yaml.load", "yaml.unsafe_load"), ast.unparse(node)
            assert not any(word.arg == "shell" for word in node.keywords), ast.unparse(node)
