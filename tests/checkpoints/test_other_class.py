"""A Llama exported as Mistral or SmolLM 3, which plain transformers reads in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import export_auto, patch_model
from hf_posenc.checkpoints import other_class
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import NotExpressible
from hf_posenc.schemes.mask.window import Window

TEXT = torch.randint(3, 96, (1, 3 * TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("window", {"size": 16}, "mistral", {"sliding_window": 16}),
    ("yarn+window", {"size": 20}, "mistral", {"sliding_window": 20}),
    ("irope", {}, "smollm3", {"no_rope_layers": [1, 0]}),
    ("drope", {"keep_layers": [0]}, "smollm3", {"no_rope_layers": [1, 0]}),
    ("yarn", {}, "llama", {}),
]


def patched(scheme: str, options: dict[str, Any]) -> Any:
    return patch_model(tiny_model("llama"), scheme, factor=4, **options)


@pytest.mark.parametrize(("scheme", "options", "kind", "entries"), CASES, ids=str)
def test_the_class_and_its_logits(
    scheme: str, options: dict[str, Any], kind: str, entries: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(other_class, "check_alone", lambda *_: None)  # a process each; the slow test has it
    model = patched(scheme, options)
    export_auto(model, tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["model_type"] == kind
    assert entries.items() <= config.items()
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert torch.allclose(there(TEXT).logits, model(TEXT).logits, atol=1e-4)  # two float32 ways to logits of about 1
    assert not torch.allclose(there(TEXT).logits, tiny_model("llama")(TEXT).logits, atol=0.1)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("alibi", {}), ("window", {"sinks": 2}), ("drope", {"keep_layers": [0], "softmax_scale": 1.2}), ("rerope", {})],
)
def test_what_no_class_computes_is_refused(scheme: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotExpressible):
        export_auto(patched(scheme, options), tmp_path / "plain")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_is_read_without_this_package(tmp_path: Path) -> None:
    export_auto(patched("yarn+window", {"size": 20}), tmp_path / "plain")
    assert (tmp_path / "plain" / "model.safetensors").exists()


@pytest.mark.slow
def test_other_logits_leave_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    """A control: the window is written one key too wide."""
    monkeypatch.setattr(Window, "native_window", lambda self: self.size + 1)
    with pytest.raises(NotExpressible, match="other logits"):
        export_auto(patched("window", {"size": 16}), tmp_path / "plain")
    assert not list(tmp_path.iterdir())
