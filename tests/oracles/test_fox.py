"""FoX and CABLE against the definition in float64, against ALiBi where gates are constant, and against each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import patch_model, scheme_of
from hf_posenc.core.terms import KeyBias
from hf_posenc.schemes.content.cable import Cable
from hf_posenc.schemes.content.fox import Fox

from . import content, models, naive
from .models import HEAD_DIM, HEADS, TRAINED

LENGTH = 3 * TRAINED
LIMIT = 1e-4


def schemes_of(model: nn.Module) -> list[Fox]:
    return [m for m in model.modules() if isinstance(m, Fox)]


def drawn(model: Any, seed: int = 3) -> Any:
    """Gates that differ by token, of which about a tenth is forgotten."""
    torch.manual_seed(seed)
    for one in schemes_of(model):
        nn.init.normal_(one.gate.weight, std=0.1)
        nn.init.normal_(one.gate.bias, mean=2.0 * one.sign, std=0.5)
    return model


def gates(one: Fox, hidden: Tensor, sign: float = 1.0) -> Tensor:
    """ln f of ``hidden [L, width]``, ``[directions · heads, L]``, from the weights alone."""
    logits = hidden @ one.gate.weight.detach().double().T + one.gate.bias.detach().double()
    return -torch.log1p(torch.exp(-sign * logits)).T


def between(log_gates: Tensor) -> Tensor:
    """c_i − c_j, ``[heads, L, L]``, as the reference kernel's plain version has it; right for j ≤ i."""
    c = log_gates.cumsum(-1)
    return c[:, :, None] - c[:, None, :]


def definition(one: Fox, hidden: Tensor, sign: float) -> Tensor:
    """Of a decoder; of an encoder with two gates, the lower triangle of the first and the upper of the second."""
    both = gates(one, hidden, sign)
    if len(both) == HEADS:
        return between(both) if one.geometry.causal else -between(both).abs()
    return between(both[:HEADS]).tril() - between(both[HEADS:]).triu()


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize(("name", "sign"), [("fox", 1.0), ("cable", -1.0)])
@pytest.mark.parametrize("options", [{}, {"with_rope": True}, {"bidirectional": False}], ids=str)
def test_whole_models(model: str, name: str, sign: float, options: dict[str, Any]) -> None:
    build, formula = models.MODELS[model]
    ids, text = models.text(LENGTH), naive.free(model, LENGTH)
    patched = drawn(patch_model(build(), name, factor=3, **options))
    schemes = schemes_of(patched)
    assert len(schemes) == 2
    directions = 2 if model == "bert" and "bidirectional" not in options else 1
    assert schemes[0].gate.weight.shape[0] == directions * HEADS
    unpatched = build()
    inputs = content.attention_inputs(unpatched)
    layers = [lambda q, k, one=one: definition(one, inputs[-1], sign) for one in schemes]
    rotation = {"frequencies": naive.rope(HEAD_DIM)} if "with_rope" in options else {}
    expected = formula(unpatched, ids, content.with_layers(text, layers, **rotation))
    assert len(inputs) == 2
    assert (models.logits(patched, ids) - expected).abs().max() <= LIMIT
    other = [lambda q, k, one=one: definition(one, inputs[-1], -sign) for one in schemes]  # control: the negated gate
    assert (formula(unpatched, ids, content.with_layers(text, other, **rotation)) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("model", models.MODELS)
def test_cable_is_fox_of_the_negated_gate(model: str) -> None:
    build, _ = models.MODELS[model]
    ids = models.text(LENGTH)
    first, second = drawn(patch_model(build(), "fox", factor=3)), patch_model(build(), "cable", factor=3)
    assert isinstance(scheme_of(second), Cable)
    for one, other in zip(schemes_of(first), schemes_of(second), strict=True):
        other.gate.weight.data, other.gate.bias.data = -one.gate.weight.data, -one.gate.bias.data
    assert torch.equal(models.logits(first, ids), models.logits(second, ids))
    same = patch_model(build(), "cable", factor=3, param="logsigmoid")
    same.load_state_dict(first.state_dict())
    assert torch.equal(models.logits(same, ids), models.logits(first, ids))


@pytest.mark.parametrize("rows", [1, 256])
def test_near_keys_keep_precision_at_large_positions(rows: int) -> None:
    """After 2 · 10⁵ tokens with half forgotten at each, what the newest rows see near by is exact to 1e-4 nats."""
    torch.manual_seed(0)
    length, near = 200_000, 64
    log_gates = torch.log(torch.rand(HEADS, length) * 0.5 + 0.25)
    positions = torch.arange(length)[None]
    ctx = content.context(positions[:, -rows:], keys=positions, causal=True)
    bias = Fox(replace(models.geometry(), kv_heads=1)).bias(replace(ctx, extra_key_channels=log_gates.T[None, None]))
    assert isinstance(bias, KeyBias)
    exact = log_gates.double().cumsum(-1)
    steps = -exact[:, -near:].diff()
    assert (bias.values[0, :, -near:].diff() - steps).abs().max() < 1e-9
    in_float32 = -log_gates.cumsum(-1)[:, -near:].diff()  # control
    assert (in_float32 - steps).abs().max() > 1e-3
