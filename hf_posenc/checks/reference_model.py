"""Run a patched model with reference attention in every layer, or with any other replacement of ``attend``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.checks.forward import forward, positions_from
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.engine_backend import AttentionOutput
from hf_posenc.patching.reference_attention import ReferenceTerms, attention_output, reference_terms


def reference_logits(model: PreTrainedModel, tokens: Tensor, start: int = 0) -> Tensor:
    """Logits ``[1, token, width]`` of one text ``[1, token]`` from position ``start`` on, by the formula."""
    return reference_outputs(model, tokens, start)[0]


def reference_outputs(model: PreTrainedModel, tokens: Tensor, start: int = 0) -> tuple[Tensor, list[ReferenceTerms]]:
    """Logits by the formula, and the terms of every layer's scheme."""
    positions = positions_from(model, tokens.shape[1], start)
    with torch.no_grad(), use_reference_attention(model, positions) as recorded:
        return forward_from(model, tokens, start), recorded


def forward_from(model: PreTrainedModel, tokens: Tensor, start: int) -> Tensor:
    """Logits of a text whose first token has position ``start``, by the model's own attention."""
    call: dict[str, Any] = {} if start == 0 else {"position_ids": positions_from(model, tokens.shape[1], start)}
    return forward(model, tokens, **call)


@contextmanager
def use_reference_attention(model: nn.Module, positions: Tensor) -> Iterator[list[ReferenceTerms]]:
    """Inside the block, compute every patched layer by `attention_output`, for one text at ``positions [1, token]``.

    Yields a list to which each layer appends the terms of its scheme.
    """
    layers, recorded = patched_layers(model), []
    scheme_positions = layers[0].scheme.reposition(positions, training=False)

    def attend(
        own: Any, layer: PatchedAttention, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, host: Any, **_: Any
    ) -> AttentionOutput:
        recorded.append(reference_terms(layer, layer.scheme, scheme_positions, hidden, host))
        return attention_output(recorded[-1], q, k, v).to(v.dtype).transpose(1, 2), None

    with replace_attend(layers, attend):
        yield recorded


@contextmanager
def replace_attend(layers: list[PatchedAttention], attend: Any) -> Iterator[None]:
    """Inside the block, call ``attend(own, layer, …)`` instead of each layer's method ``attend``, which is ``own``."""
    before = [dict(layer.__dict__) for layer in layers]
    for layer in layers:
        layer.__dict__["attend"] = partial(attend, layer.attend, layer)
    try:
        yield
    finally:
        for layer, attributes in zip(layers, before, strict=True):
            layer.__dict__.pop("attend")
            layer.__dict__.update({name: own for name, own in attributes.items() if name == "attend"})


def patched_layers(model: nn.Module) -> list[PatchedAttention]:
    """The patched attention modules of a model, in the order of its layers."""
    return [module for module in model.modules() if isinstance(module, PatchedAttention)]
