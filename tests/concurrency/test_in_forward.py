"""A model is not patched from within its own forward pass, and another model is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc import is_patched, patch_model, unpatch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import ModelInUse

TEXT = torch.arange(3, 27)[None]


@torch.no_grad()
def call_with_hook(model: Any, module: str, change: Any) -> int:
    """Call a model, one of whose modules makes a change once; how often it was made."""
    made = []
    model.get_submodule(module).register_forward_hook(lambda *_: made or made.append(change()))
    model(TEXT)
    return len(made)


@pytest.mark.parametrize("module", ["", "model", "model.layers.0.self_attn"])
@pytest.mark.parametrize("patched", [False, True])
def test_from_a_hook_of_the_model(module: str, patched: bool) -> None:
    model = tiny_model("llama")
    if patched:
        patch_model(model, "yarn", factor=2)

    def change() -> None:
        with pytest.raises(ModelInUse, match="hook"):
            unpatch_model(model) if patched else patch_model(model, "yarn", factor=2)

    assert call_with_hook(model, module, change) == 1
    assert is_patched(model) == patched


def test_from_a_hook_of_another_model() -> None:
    model, other = tiny_model("llama"), tiny_model("gpt2")
    assert call_with_hook(model, "model", lambda: patch_model(other, "alibi")) == 1
    assert is_patched(other)
