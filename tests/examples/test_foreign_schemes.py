"""The schemes of examples/schemes against their papers' formulas in float64, and under the package's own checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from hf_posenc import check_scheme, patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import UnsupportedModel
from hf_posenc.schemes.base import Scheme

from ..example_modules import example_module
from ..families.tiny import tiny
from ..oracles import content, models, naive

NAMES = ["evq_cosh", "inkling_rel", "repo", "rope_pp"]
LENGTH, LIMIT = 3 * models.TRAINED, 1e-4  # float32 sums of about 100 products against float64
CHECKS = ["backend", "cache", "padding", "saving", "gradients", "formula", "formula_gradients", "precision", "options"]
OTHERS = ["modernbert", "gemma2", "gpt_oss"]  # with a score factor under another name, a score cap, a sink
UNDEFINED = {*product(["rope_pp"], ["gpt2", "bert", "modernbert", "gpt_oss"]), ("evq_cosh", "gpt_oss")}
UNDEFINED |= {*product(["inkling_rel"], ["bert", "modernbert"])}


@pytest.fixture(autouse=True)
def registered() -> Iterator[Any]:
    """All four schemes, until the test ends."""
    with ExitStack() as stack:
        yield [stack.enter_context(example_module(f"schemes.{name}")) for name in NAMES]


def patched(model: Any, name: str, **options: Any) -> tuple[Any, list[Any]]:
    """A patched model, and the scheme of each layer with parameters that change outputs."""
    patch_model(model, name, factor=3, **options)
    return model, [content.drawn(one, i, std=0.3) for i, one in enumerate(model.modules()) if isinstance(one, Scheme)]


def assert_only_the_first(name: str, model: Any, texts: list[naive.Positions], unpatched: Any = None) -> None:
    """The model's logits, cached ones too, are those of the first text's formula, and of no other's: the controls."""
    build, formula = models.MODELS[name]
    unpatched, ids = unpatched or build(), models.text(LENGTH)
    found = models.logits(model, ids)
    gaps = [float((found - formula(unpatched, ids, text)).abs().max()) for text in texts]
    assert gaps[0] <= LIMIT < min(gaps[1:]) / 100, gaps
    if name != "bert":
        assert (models.in_pieces(model, ids[None], 70, 77)[0] - found).abs().max() <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), sorted({*product(NAMES, [*models.MODELS, *OTHERS])} - UNDEFINED))
def test_checks(name: str, model: str) -> None:
    unpatched = tiny(model, masked=model == "modernbert") if model in OTHERS else tiny_model(model)
    assert not [str(one) for one in check_scheme(unpatched, name, factor=2, checks=CHECKS) if one.failed]


def quantile(u: float, tau: float) -> float:
    """φ with F(φ) = 1 − sinh(τ (1 − φ)) / sinh τ = u, by bisection."""
    low, step = 0.0, 1.0
    while (step := step / 2) > 1e-18:
        low += step * (1 - math.sinh(tau * (1 - low - step)) / math.sinh(tau) <= u)
    return low


@pytest.mark.parametrize("model", models.MODELS)
@pytest.mark.parametrize(("grid", "shift"), [("midpoint", 0.5), ("endpoint", 0.0)])
def test_evq_cosh(model: str, grid: str, shift: float) -> None:
    pairs, tau, text = models.HEAD_DIM // 2, models.HEAD_DIM / math.sqrt(models.TRAINED), naive.free(model, LENGTH)
    rows = [[quantile((m + other) / pairs, tau) for m in range(pairs)] for other in (shift, 0.5 - shift)]
    frequencies = [10_000.0 ** -torch.tensor(row, dtype=torch.float64) for row in rows]
    texts = [replace(text, frequencies=row) for row in (*frequencies, naive.rope(models.HEAD_DIM))]
    assert_only_the_first(model, patched(models.MODELS[model][0](), "evq_cosh", grid=grid)[0], texts)


@dataclass(frozen=True)
class Imaginary(naive.Positions):
    """RoPE++ EH in real numbers; ``sign`` of the imaginary heads."""

    sign: float = 1.0

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        (q0, q1), (k0, k1) = query[::2, :, None].chunk(2, dim=-1), key[::2, None].chunk(2, dim=-1)
        along, across = q0 * k0 + q1 * k1, q0 * k1 - q1 * k0  # [heads / 2, L, L, pairs]
        angle = self.distance[..., None] * self.frequencies
        real, imaginary = along * angle.cos() + across * angle.sin(), along * angle.sin() - across * angle.cos()
        return torch.stack((real, self.sign * imaginary), dim=1).flatten(0, 1).sum(-1)


def test_rope_pp() -> None:
    text = replace(naive.causal(LENGTH), frequencies=naive.rope(models.HEAD_DIM))
    texts = [*(Imaginary(text.seen, text.distance, text.frequencies, sign=sign) for sign in (1.0, -1.0)), text]
    assert_only_the_first("llama", patched(models.llama(), "rope_pp")[0], texts)
    with pytest.raises(UnsupportedModel, match="an even number of query heads"):
        patch_model(models.gpt2(), "rope_pp")


@dataclass(frozen=True)
class Repositioned(naive.Positions):
    """RePo; ``inputs`` gets what each layer's attention reads, ``sign`` is that of the keys' positions."""

    inputs: Any = None
    layers: Any = None
    sign: float = 1.0

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        own, hidden = next(self.layers), self.inputs[-1]
        gate, inner, head = (layer.weight.detach().double() for layer in (own.gate, own.content, own.position))
        z = (silu(hidden @ gate.T) * (hidden @ inner.T) @ head.T).T.repeat_interleave(len(query) // len(head), 0)
        apart = z[:, :, None] - self.sign * z[:, None, :]
        rotation = torch.polar(torch.ones(1, dtype=torch.float64), apart[..., None] * self.frequencies)
        return torch.einsum("him,hjm,hijm->hij", naive.as_complex(query), naive.as_complex(key).conj(), rotation).real


@pytest.mark.parametrize("name", models.MODELS)
def test_repo(name: str) -> None:
    build, text = models.MODELS[name][0], naive.free(name, LENGTH)
    (model, schemes), unpatched = patched(build(), "repo"), build()
    shared = text.seen, text.distance, naive.rope(models.HEAD_DIM)
    inputs = content.attention_inputs(unpatched)
    texts = [Repositioned(*shared, inputs=inputs, layers=iter(schemes), sign=sign) for sign in (1.0, -1.0)]
    assert_only_the_first(name, model, [*texts, text], unpatched)


def profiles(one: Any, hidden: Tensor, shift: int = 0) -> Tensor:
    """The bias of transformers' own module, ``[heads, L, L]``; a control reads it ``shift`` distances further."""
    inkling = pytest.importorskip("transformers.models.inkling.modeling_inkling", reason="a version without Inkling")
    theirs, places = inkling.InklingRelativeLogits(*one.profiles.shape), torch.arange(len(hidden))
    theirs.proj.data = one.profiles.detach().double()
    states = (hidden @ one.mixture.weight.detach().double().T).unflatten(-1, (models.HEADS, -1))
    return theirs(states[None], places + shift, places)[0]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("extent", [20, 4 * LENGTH])
def test_inkling_rel(name: str, extent: int) -> None:
    build, text, texts = models.MODELS[name][0], naive.causal(LENGTH), []
    (model, schemes), unpatched = patched(build(), "inkling_rel", extent=extent), build()
    inputs = content.attention_inputs(unpatched)
    for shift in (0, 1):
        layers = [lambda q, k, one=one, by=shift: profiles(one, inputs[-1], by) for one in schemes]
        texts.append(content.with_layers(text, layers))
    assert_only_the_first(name, model, texts, unpatched)
