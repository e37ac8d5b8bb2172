"""Which heads use position: what becomes of their outputs when tokens stand where they do and are told otherwise.

    change[h] = ‖o′_h − o_h‖ / ‖o_h‖            o: mixed values of a head, over all rows looked at

Positions are shuffled, so that a model meets no position it does not know; what a token may see stays as it is.

total   the whole model reads with shuffled positions: what reaches a head has changed as well
direct  every layer is given the states it had, and only its attention is told otherwise. 0 where a layer knows position
        from its input alone, as in GPT-2 and BERT as they come
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

HIDDEN = "hidden_states"
Take = Callable[[int, slice, Tensor, Tensor], None]


def ignore(layer: int, rows: slice, weights: Tensor, mixed: Tensor) -> None:
    """Take nothing."""


@torch.no_grad()
def outputs(
    model: nn.Module, ids: Tensor, rows: Sequence[slice], take: Take = ignore, positions: Tensor | None = None
) -> list[Tensor]:
    """Mixed values of some rows, ``[heads, rows, dim]`` for every layer; ``take`` is shown them with their weights."""
    found: dict[int, list[Tensor]] = {}

    def see(layer: int, call: AttentionCall) -> None:
        for block, weights, mixed in weights_of(call, rows):
            take(layer, block, weights, mixed)
            found.setdefault(layer, []).append(mixed)

    told: dict[str, Any] = {}
    if positions is not None:  # beside a mask, or transformers takes their steps for the borders of packed texts
        told = {"position_ids": positions, "attention_mask": torch.ones_like(ids)}
    with capture_attention(model, see):
        base_model_of(model)[0](input_ids=ids, **told, **no_cache(model))
    return [torch.cat(found[layer], dim=1) for layer in sorted(found)]


def no_cache(model: nn.Module) -> dict[str, bool]:
    """What keeps a decoder from filling a cache nobody reads."""
    base: Any = base_model_of(model)[0]
    return {"use_cache": False} if getattr(base.config, "is_decoder", True) or attentions_of(model)[0].is_causal else {}


def changes(model: nn.Module, ids: Tensor, rows: Sequence[slice], take: Take, seed: int) -> tuple[Tensor, Tensor]:
    """Direct and total change of every head, ``[layers, heads]`` each; ``take`` is shown the text as it is read."""
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(seed))[None].to(ids.device)
    with inputs_of(model) as states:
        clean = outputs(model, ids, rows, take)
    with held(model, states):
        direct = outputs(model, ids, rows, positions=order)
    total = outputs(model, ids, rows, positions=order)
    return torch.stack(list(map(change, clean, direct))), torch.stack(list(map(change, clean, total)))


def change(before: Tensor, after: Tensor) -> Tensor:
    """Relative change of ``[heads, rows, dim]``, one a head."""
    return ((after - before).norm(dim=(1, 2)) / before.norm(dim=(1, 2)).clamp(min=1e-30)).double().cpu()


@contextmanager
def inputs_of(model: nn.Module) -> Iterator[list[Tensor]]:
    """A list that fills with what each attention layer reads."""
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
def held(model: nn.Module, states: Sequence[Tensor]) -> Iterator[None]:
    """Every attention layer reads ``states`` in place of what reaches it."""

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
