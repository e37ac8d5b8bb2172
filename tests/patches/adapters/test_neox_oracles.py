"""Schemes on GPT-NeoX, which rotates a part of each head, against transformers' own GPT-NeoX with the same rotation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from ...example_modules import example_module
from .neox import tiny_neox

FACTOR = 4
NATIVE: dict[str, dict[str, Any]] = {
    "rope": {"rope_type": "default"},
    "pi": {"rope_type": "linear", "factor": FACTOR},
    "yarn": {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": TRAINED_LENGTH},
    "llama3": {
        "rope_type": "llama3", "factor": FACTOR, "original_max_position_embeddings": TRAINED_LENGTH,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def adapter() -> Iterator[None]:
    with example_module("third_party_adapter"):
        yield


def logits(model: nn.Module, length: int = 2 * TRAINED_LENGTH) -> Tensor:
    tokens = torch.randint(0, 96, (2, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits


def native(scheme: str, partial: float) -> nn.Module:
    rope = {"rope_theta": 10_000.0, "partial_rotary_factor": partial, **NATIVE[scheme]}
    return tiny_neox(rope_parameters=rope, max_position_embeddings=FACTOR * TRAINED_LENGTH)


@pytest.mark.parametrize("partial", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("scheme", NATIVE)
def test_rotations_are_transformers_own(scheme: str, partial: float) -> None:
    theirs = logits(native(scheme, partial))
    ours = logits(patch_model(tiny_neox(partial), scheme, factor=FACTOR))
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    if scheme != "rope":  # control
        assert (logits(tiny_neox(partial)) - theirs).abs().max() > 1e-2
