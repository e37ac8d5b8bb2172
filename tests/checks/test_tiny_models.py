"""Tiny models have the score and logit deviations of trained models: about 3 and 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import HEADS, TINY_MODELS, TRAINED_LENGTH, WIDTH, tiny_model


def projections(name: str, model: nn.Module) -> list[tuple[nn.Module, int, nn.Module, int]]:
    """Query and key projections of each layer, and which third of their output each is."""
    if name == "llama":
        return [(layer.self_attn.q_proj, 0, layer.self_attn.k_proj, 0) for layer in model.model.layers]
    if name == "gpt2":
        return [(block.attn.c_attn, 0, block.attn.c_attn, 1) for block in model.transformer.h]
    return [(layer.attention.self.query, 0, layer.attention.self.key, 0) for layer in model.bert.encoder.layer]


@pytest.mark.parametrize("name", TINY_MODELS)
def test_deviation_of_scores_and_logits(name: str) -> None:
    model = tiny_model(name)
    seen: dict[nn.Module, Tensor] = {}
    for query, _, key, _ in projections(name, model):
        for module in {query, key}:
            module.register_forward_hook(lambda module, _, out: seen.__setitem__(module, out))
    logits = forward(model, random_tokens(model, TRAINED_LENGTH, rows=4))
    assert 0.5 < logits.std() < 2.0
    for query, q_part, key, k_part in projections(name, model):
        q = seen[query][..., q_part * WIDTH : (q_part + 1) * WIDTH].unflatten(-1, (HEADS, -1))
        k = seen[key][..., k_part * WIDTH : (k_part + 1) * WIDTH].unflatten(-1, (-1, WIDTH // HEADS))
        k = k.repeat_interleave(HEADS // k.shape[-2], dim=-2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(WIDTH / HEADS)
        assert 2.0 < scores.std() < 4.5
