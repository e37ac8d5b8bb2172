"""FoX and CABLE against the definition in float64, against ALiBi where gates are constant, and against each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import patch_model, scheme_of
from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import KeyBias
from hf_posenc.schemes.content.cable import Cable
from hf_posenc.schemes.content.fox import Fox

from . import content, models
from .models import HEAD_DIM, HEADS, TRAINED
from .naive import rope

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
    ids, text = models.text(LENGTH), content.free(model, LENGTH)
    patched = drawn(patch_model(build(), name, factor=3, **options))
    schemes = schemes_of(patched)
    assert len(schemes) == 2
    directions = 2 if model == "bert" and "bidirectional" not in options else 1
    assert schemes[0].gate.weight.shape[0] == directions * HEADS
    unpatched = build()
    inputs = content.attention_inputs(unpatched)
    layers = [lambda q, k, one=one: definition(one, inputs[-1], sign) for one in schemes]
    rotation = {"frequencies": rope(HEAD_DIM)} if "with_rope" in options else {}
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


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_with_rope_is_the_composition(model: str) -> None:
    build, _ = models.MODELS[model]
    ids = models.text(LENGTH)
    one = drawn(patch_model(build(), "fox", factor=3, with_rope=True))
    two = drawn(patch_model(build(), "rope+fox", factor=3))
    assert torch.equal(models.logits(one, ids), models.logits(two, ids))


@pytest.mark.parametrize(("name", "sign"), [("fox", 1), ("cable", -1)])
@pytest.mark.parametrize("bias_init", [0.0, 5.0])
def test_gates_start_at_the_given_value(name: str, sign: int, bias_init: float) -> None:
    """Both names mean by ``bias_init`` how much is kept."""
    one = scheme_of(patch_model(models.llama(), name, bias_init=bias_init))
    assert isinstance(one, Fox)
    kept = gates(one, torch.zeros(1, models.WIDTH, dtype=torch.float64), sign).exp()
    assert (kept - torch.sigmoid(torch.tensor(bias_init))).abs().max() < 1e-6
    assert 0.01 < one.gate.weight.std() < 0.03


def call(length: int, rows: int, log_gates: Tensor) -> PositionContext:
    """The last rows of a text whose gates are given, ``[heads, length]``."""
    positions = torch.arange(length)[None]
    extra_key_channels = log_gates.T[None, None]
    return replace(
        content.context(positions[:, -rows:], keys=positions, causal=True), extra_key_channels=extra_key_channels
    )


def decoder() -> Fox:
    return Fox(replace(models.geometry(), kv_heads=1))


@pytest.mark.parametrize("rows", [1, 256])
def test_near_keys_keep_precision_at_large_positions(rows: int) -> None:
    """After 2 · 10⁵ tokens with half forgotten at each, what the newest rows see near by is exact to 1e-4 nats."""
    torch.manual_seed(0)
    length, near = 200_000, 64
    log_gates = torch.log(torch.rand(HEADS, length) * 0.5 + 0.25)
    bias = decoder().bias(call(length, rows, log_gates))
    assert isinstance(bias, KeyBias)
    exact = log_gates.double().cumsum(-1)
    steps = -exact[:, -near:].diff()
    assert (bias.values[0, :, -near:].diff() - steps).abs().max() < 1e-9
    naive = -log_gates.cumsum(-1)[:, -near:].diff()  # control: a cumulative sum in float32
    assert (naive - steps).abs().max() > 1e-3


@pytest.mark.parametrize(("length", "limit"), [(300, 1e-5), (1000, 2e-5)])
def test_long_texts_keep_precision(length: int, limit: float) -> None:
    """Attention in float32 behind gates that add up to thousands of nats, against the same in float64."""
    generator = torch.Generator().manual_seed(0)
    log_gates = torch.log(torch.rand(HEADS, length, generator=generator) * 0.5 + 0.25)
    query, key, value = (2 * torch.randn(1, HEADS, length, 16, generator=generator) for _ in range(3))
    ctx = call(length, length, log_gates)
    ours = dispatch.attend(AttentionCall((query,), (key,), value, decoder().terms(ctx), ctx, None, 0.25)).double()
    c = log_gates.double().cumsum(-1)
    logits = query.double() @ key.double().mT * 0.25 + c[:, :, None] - c[:, None, :]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    exact = logits.masked_fill(future, -torch.inf).softmax(-1) @ value.double()
    assert (ours - exact).abs().max() < limit  # scores of size 20 and more, and half of all forgotten at every token
    from_the_start = (logits - c[:, :, None]).float()  # control: one count for all rows, in float32
    coarse = from_the_start.masked_fill(future, -torch.inf).double().softmax(-1) @ value.double()
    assert (coarse - exact).abs().max() > 1.5 * limit


def test_padding_has_no_decay() -> None:
    """Gates of padding, whatever they are, do not reach the bias."""
    log_gates = -torch.rand(HEADS, 20)
    ctx = call(20, 20, log_gates)
    real = torch.ones(1, 20, dtype=torch.bool)
    real[:, 9:13] = False
    emptied = call(20, 20, log_gates * real)
    one = decoder()
    assert torch.equal(one.bias(replace(ctx, real_keys=real)).values, one.bias(emptied).values)
    assert not torch.equal(one.bias(ctx).values, one.bias(emptied).values)
