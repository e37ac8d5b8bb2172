"""What is written of an offloaded model is what is written of it elsewhere, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from safetensors.torch import load_file

from hf_posenc import export, patch_model
from hf_posenc.checkpoints import other_class
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import NotExpressible


def patched(family: str, scheme: str, *, away: bool = True, **options: Any) -> Any:
    model = patch_model(tiny_model(family), scheme, factor=4, **options)
    return cpu_offload(model, execution_device=torch.device("cpu")) if away else model


@pytest.mark.parametrize("case", ["llama yarn auto", "gpt2 yarn auto", "gpt2 sinusoidal auto", "llama yarn gguf"])
def test_the_same_weights(case: str, tmp_path: Path, monkeypatch: Any) -> None:
    """accelerate keeps nothing but names in the modules: the files are those of the model before it."""
    monkeypatch.setattr(other_class, "check_alone", lambda *_: None)
    family, scheme, to = case.split()
    if to == "gguf":
        pytest.importorskip("gguf")
    for away in (True, False):
        export(patched(family, scheme, away=away), tmp_path / str(away), to=to)
    file = "model.gguf" if to == "gguf" else "model.safetensors"
    assert (tmp_path / "True" / file).read_bytes() == (tmp_path / "False" / file).read_bytes()


@pytest.mark.slow
def test_the_export_is_compared_with_the_offloaded_model(tmp_path: Path) -> None:
    export(patched("gpt2", "yarn"), tmp_path / "plain", to="auto")
    assert (tmp_path / "plain" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_bundle_has_the_weights(tmp_path: Path) -> None:
    for away in (True, False):
        torch.manual_seed(0)
        patched("llama", "fire", away=away).save_pretrained(tmp_path / str(away), code="bundle")
    one, other = (load_file(tmp_path / str(away) / "model.safetensors") for away in (True, False))
    assert one.keys() == other.keys()
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("to", ["transformers", "auto", "gguf"])
def test_parameters_that_an_export_computes_from_are_refused(to: Any, tmp_path: Path) -> None:
    if to == "gguf":
        pytest.importorskip("gguf")
    with pytest.raises(NotExpressible, match="offloaded"):
        export(patched("llama", "rope", learn_freq=True), tmp_path / "plain", to=to)
    assert not (tmp_path / "plain").exists()
