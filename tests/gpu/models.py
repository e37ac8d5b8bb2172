"""Patched copies of the tiny Llama, and measures of the difference of two results."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_posenc import patch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, VOCABULARY, tiny_model
from hf_posenc.core.torch_state import fixed_seed

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "speed.md"
RECIPES = {"cape", "pose", "randpos", "shape"}  # change positions while training, and bring no kernel of their own


def table() -> dict[str, tuple[str, str]]:
    """Scheme to the kernels that read with it and that decode, as the guide to speed says."""
    section = PAGE.read_text(encoding="utf-8").split("## On a GPU\n")[1].partition("\nWhat to expect")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    return {name: (reading, decoding) for _, names, reading, decoding in rows for name in re.findall(r"`(\w+)`", names)}


SCHEMES = sorted(table())
UNPATCHED = "unpatched"
WITHIN = ("learned", "norm01")  # are not extended: neither has positions beyond its own
WHOLE = ("norm01", "randpos")  # refuse to continue a text from a cache
LENGTH = 3 * TRAINED_LENGTH


def patched(scheme: str, model: PreTrainedModel | None = None) -> PreTrainedModel:
    """A model with a scheme, on the CPU in float32, its learned parameters moved off their first values.

    Without another it is the tiny Llama.
    """
    model = model or tiny_model("llama")
    if scheme != UNPATCHED:
        with fixed_seed(0):
            patch_model(model, scheme, factor=None if scheme in WITHIN else 4)
        perturb_parameters(model)
    return model


def grouped_query_model() -> PreTrainedModel:
    """A tiny Llama of eight query heads to a key head."""
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=8, num_key_value_heads=1, num_hidden_layers=2, intermediate_size=256,
        vocab_size=VOCABULARY, max_position_embeddings=TRAINED_LENGTH,
    )  # fmt: skip
    with fixed_seed(0):
        return LlamaForCausalLM(config).eval()


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model in float64 on the CPU."""
    return copy.deepcopy(model).double()


def tokens_of(scheme: str, seed: int = 0) -> Tensor:
    """Two texts of three times the trained length, or as long as the scheme has positions."""
    length = TRAINED_LENGTH if scheme in WITHIN else LENGTH
    return torch.randint(VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed))


def each(schemes: Iterable[str], group: str) -> list:
    """Parameters of a test; schemes with a kernel that is compiled share a process, and so the kernel."""
    on_flex = [name for name, kernels in table().items() if "`flex_attention`" in kernels]
    mark = pytest.mark.xdist_group(f"flex {group}")
    return [pytest.param(scheme, marks=[mark] if scheme in on_flex else []) for scheme in schemes]


def gap(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest entry of ``theirs``; infinite if a value is not finite."""
    value = (ours.detach().cpu().double() - theirs.detach().cpu().double()).abs().max()
    value = value / theirs.detach().abs().max().cpu().double().clamp(min=1e-30)
    return float(value) if bool(value.isfinite()) else float("inf")


def rms_gap(ours: Tensor, theirs: Tensor) -> float:
    """Root mean square of the difference, relative to the root mean square of ``theirs``."""
    ours, theirs = ours.detach().cpu().double(), theirs.detach().cpu().double()
    return float((ours - theirs).pow(2).mean().sqrt() / theirs.pow(2).mean().sqrt())


def gradients(model: PreTrainedModel, tokens: Tensor) -> dict[str, Tensor]:
    """Gradients of the loss on a text."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    loss = model.train()(tokens, labels=tokens, use_cache=False).loss
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}


def gradient_gap(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, str]:
    """The largest gap of a parameter's gradient, and the parameter.

    Gradients a thousand times smaller than the largest one count relative to that: what is left of a sum that cancels.
    """
    assert set(ours) == set(theirs)
    least = 1e-3 * max(float(grad.abs().max()) for grad in theirs.values())

    def one(name: str) -> float:
        return gap(ours[name], theirs[name]) * min(1.0, float(theirs[name].abs().max()) / least)

    return max((one(name), name) for name in theirs)
