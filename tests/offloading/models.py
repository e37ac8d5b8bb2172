"""Tiny models, their blocks by name, and device maps that split them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc import patch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import tiny_model

LENGTH = 30
FIRST = {
    "llama": ("model.embed_tokens", "model.rotary_emb", "model.layers.0"),
    "gpt2": ("transformer.wte", "transformer.wpe", "transformer.h.0"),
    "bert": ("bert.embeddings", "bert.encoder.layer.0"),
}
SECOND = {
    "llama": ("model.layers.1", "model.norm", "lm_head"),
    "gpt2": ("transformer.h.1", "transformer.ln_f", "lm_head"),
    "bert": ("bert.encoder.layer.1", "cls"),
}
SHARED = {"llama": "model.posenc", "gpt2": "transformer.posenc", "bert": "bert.posenc"}
# Parameters that layers share, that each has, on the scheme itself and in its submodules, read in blocks, in the
# embeddings, and with keys.
LEARNED = ("t5", "shaw", "fire", "deberta", "fox", "rope+ssmax")


def patched(family: str, scheme: str, *, seed: int = 0) -> PreTrainedModel:
    """A contract model with a scheme, its parameters drawn from a seed and moved."""
    model = seeded(tiny_model(family), scheme, seed=seed)
    perturb_parameters(model)
    return model


def seeded(model: PreTrainedModel, scheme: str, *, seed: int = 0) -> PreTrainedModel:
    """The patched model, with parameters drawn from a seed."""
    torch.manual_seed(seed)
    return patch_model(model, scheme, factor=2)


def logits_of(model: nn.Module) -> Tensor:
    """Outputs of a model for two texts."""
    return forward(model, random_tokens(tiny_model("llama"), LENGTH, rows=2))


def device_map(family: str, first: str, second: str, shared: str | None = None) -> dict[str, str]:
    """Device map of both halves of a model, and of the modules that its layers share."""
    found = {**dict.fromkeys(FIRST[family], first), **dict.fromkeys(SECOND[family], second)}
    return found if shared is None else {**found, SHARED[family]: shared}
