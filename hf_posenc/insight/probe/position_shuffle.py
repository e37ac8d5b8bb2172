"""Find heads that use position: shuffle the position ids and measure how much each head's output changes.

    change[h] = ‖o′_h − o_h‖ / ‖o_h‖            o: outputs of head h, over all measured rows

Token order and attention mask stay; position ids are permuted, so that the model meets no unseen position.

total   all layers use shuffled positions, so the inputs of later layers change as well
direct  every layer gets its original hidden states, and only its attention uses shuffled positions; 0 where position
        enters by the embeddings alone, as in unpatched GPT-2 and BERT
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.attention.call import AttentionCall
from hf_posenc.insight.probe.attention_rows import weights_of
from hf_posenc.insight.probe.capture import attentions_of, capture_attention
from hf_posenc.patching.state import base_model_of
from hf_posenc.patching.trained_length import is_causal

HIDDEN = "hidden_states"
RowsCallback = Callable[[int, slice, Tensor, Tensor], None]
"""Called with layer, rows, attention weights ``[heads, rows, key]`` and outputs ``[heads, rows, dim]``."""


def ignore(layer: int, rows: slice, weights: Tensor, mixed: Tensor) -> None:
    """Discard the rows."""


@torch.no_grad()
def outputs(
    model: nn.Module,
    ids: Tensor,
    rows: Sequence[slice],
    on_rows: RowsCallback = ignore,
    positions: Tensor | None = None,
) -> list[Tensor]:
    """Run the model and return the head outputs of some rows, ``[heads, rows, dim]`` for every layer.

    Args:
        model: causal or masked language model.
        ids: token ids, ``[1, token]``.
        rows: blocks of rows that are kept.
        on_rows: called with each block, its weights and its outputs.
        positions: position ids, ``[1, token]``; by default the model's own.
    """
    found: dict[int, list[Tensor]] = {}

    def keep_rows(layer: int, call: AttentionCall) -> None:
        for block, weights, mixed in weights_of(call, rows):
            on_rows(layer, block, weights, mixed)
            found.setdefault(layer, []).append(mixed)

    inputs: dict[str, Any] = {}
    if positions is not None:  # without a mask, transformers takes jumps in position ids for borders of packed texts
        inputs = {"position_ids": positions, "attention_mask": torch.ones_like(ids)}
    with capture_attention(model, keep_rows):
        base_model_of(model)[0](input_ids=ids, **inputs, **no_cache(model))
    return [torch.cat(found[layer], dim=1) for layer in sorted(found)]


def no_cache(model: nn.Module) -> dict[str, bool]:
    """Return the keyword that keeps a decoder from filling a KV cache."""
    base: Any = base_model_of(model)[0]
    return {"use_cache": False} if getattr(base.config, "is_decoder", True) or is_causal(model) else {}


def changes(
    model: nn.Module, ids: Tensor, rows: Sequence[slice], on_rows: RowsCallback, seed: int
) -> tuple[Tensor, Tensor]:
    """Measure the direct and total change of every head under shuffled positions, ``[layers, heads]`` each.

    ``on_rows`` is called for the unshuffled forward pass only.
    """
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(seed))[None].to(ids.device)
    with recorded_inputs(model) as states:
        clean = outputs(model, ids, rows, on_rows)
    with fixed_inputs(model, states):
        direct = outputs(model, ids, rows, positions=order)
    total = outputs(model, ids, rows, positions=order)
    return torch.stack(list(map(change, clean, direct))), torch.stack(list(map(change, clean, total)))


def change(before: Tensor, after: Tensor) -> Tensor:
    """Relative change of ``[heads, rows, dim]``, one number per head."""
    return ((after - before).norm(dim=(1, 2)) / before.norm(dim=(1, 2)).clamp(min=1e-30)).double().cpu()


@contextmanager
def recorded_inputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, record the hidden states that enter each attention layer, on the CPU."""
    states: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append((kwargs[HIDDEN] if HIDDEN in kwargs else args[0]).cpu())  # of all layers: too much for a GPU

    handles = [m.register_forward_pre_hook(keep, with_kwargs=True) for m in attentions_of(model)]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def fixed_inputs(model: nn.Module, states: Sequence[Tensor]) -> Iterator[None]:
    """Inside the block, replace the hidden states that enter each attention layer by ``states``."""

    def replaced(state: Tensor) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if HIDDEN in kwargs:
                return args, {**kwargs, HIDDEN: state.to(kwargs[HIDDEN].device)}
            return (state.to(args[0].device), *args[1:]), kwargs

        return hook

    handles = [
        module.register_forward_pre_hook(replaced(state), with_kwargs=True)
        for module, state in zip(attentions_of(model), states, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
