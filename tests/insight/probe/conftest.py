"""Small random models with sharp attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ...families.tiny import tiny

LENGTH, VOCABULARY = 48, 64
Build = Callable[..., Any]


def small(kind: str, **more: Any) -> Any:
    """Two layers of four heads; weights so large that scores differ by several units."""
    model = tiny(
        kind, masked=kind == "bert", vocab_size=VOCABULARY, hidden_size=32, n_embd=32, intermediate_size=48, n_layer=2,
        num_hidden_layers=2, head_dim=8, max_position_embeddings=LENGTH, n_positions=LENGTH, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
    return model


@pytest.fixture
def build() -> Build:
    return small


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))
